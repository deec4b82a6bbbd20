"""Translation of requests for providers that do not speak the client's protocol, by LiteLLM, and all patches of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accordion.composition.features import Feature

if TYPE_CHECKING:
    from accordion.model.ports import Translator


def create_translator() -> Translator:
    """Returns a translator, which starts its thread and imports LiteLLM with the first request."""
    from accordion.features.translation.translator import LiteLLMTranslator  # noqa: PLC0415  # not for the command line
    from accordion.protocols.registry import PROTOCOLS  # noqa: PLC0415

    return LiteLLMTranslator(PROTOCOLS)


FEATURE = Feature(create_translator=create_translator)

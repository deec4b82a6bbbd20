"""A pipeline in which Accordion does the context edits that a provider lacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from accordion.features.client_compaction.edit_handler import EditServices
from accordion.features.client_compaction.edit_hook import ContextEditHook, MissingFeatures
from accordion.pipeline.request_hooks import RequestHook
from accordion.stores.encryption import open_block_sealer
from tests.pipeline_setup import PipelineSetup


def edit_hooks(setup: PipelineSetup) -> Sequence[RequestHook]:
    """The hook of context edits for a pipeline."""
    builder = setup.builder
    services = EditServices(
        builder.request_renderer, open_block_sealer(""), builder.count_message, setup.clock, setup.tasks
    )
    return [ContextEditHook(services, MissingFeatures(setup.clock.now))]


def edit_setup(**fields: Any) -> PipelineSetup:
    """A setup with this hook."""
    return PipelineSetup(request_hooks=edit_hooks, **fields)

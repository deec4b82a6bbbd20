from collections.abc import AsyncIterator

import pytest

from tests.features.translation.translator_setup import TranslatorSetup, start_translator


@pytest.fixture
async def translator() -> AsyncIterator[TranslatorSetup]:
    async with start_translator() as made:
        yield made

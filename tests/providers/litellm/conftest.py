from collections.abc import AsyncIterator

import pytest

from tests.providers.litellm.translator_setup import Rig, rigged


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with rigged() as made:
        yield made

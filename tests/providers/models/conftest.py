from collections.abc import AsyncIterator

import pytest

from tests.providers.models.translation import Rig, rigged


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with rigged() as made:
        yield made

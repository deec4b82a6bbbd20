import pytest

from tests.conftest import Start
from tests.e2e.small_window import Proxies


@pytest.fixture(scope="module")
def proxies(start: Start) -> Proxies:
    """Those that the tests of a file share."""
    return Proxies(start)

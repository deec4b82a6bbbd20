import gc
import sys
from collections.abc import Iterator

import pytest

from accordion.server.interpreter import set_up_interpreter


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    thresholds, interval = gc.get_threshold(), sys.getswitchinterval()
    yield
    gc.set_threshold(*thresholds)
    sys.setswitchinterval(interval)


def test_a_serving_process_collects_seldom_and_changes_threads_often() -> None:
    set_up_interpreter()
    assert gc.get_threshold() == (50_000, 20, 50)
    assert sys.getswitchinterval() == pytest.approx(0.0005)

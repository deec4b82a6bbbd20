"""Prints how long a full garbage collection stops all threads of a serving process, in ms of CPU time, as JSON.

Each pair is without and with `gc.freeze` before: behind the start, and behind the import of LiteLLM.
"""

from __future__ import annotations

import gc
import json
import time
from statistics import median


def collect() -> float:
    """Returns the median CPU time of five full collections, in ms."""
    taken = []
    for _ in range(5):
        began = time.thread_time()
        gc.collect()
        taken.append(1000 * (time.thread_time() - began))
    return median(taken)


def pair() -> tuple[float, float]:
    """Returns the time of a collection without and with a freeze before it."""
    before = collect()
    gc.freeze()
    after = collect()
    gc.unfreeze()
    return before, after


if __name__ == "__main__":
    import accordion.cli.serve  # noqa: F401  # what a worker imports

    started = pair()
    from accordion.providers.litellm.litellm_compat import load_litellm

    load_litellm()
    gc.unfreeze()
    print(json.dumps([started, pair()]))

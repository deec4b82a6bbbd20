"""Serves as Accordion does, and prints at its end the cost of garbage collections.

    python -m bench.garbage_collections MEASURE …

One line of JSON on standard error: the number of collections of each generation, and their CPU time in ms. `MEASURE`
is what Accordion starts without (serve_without.py).
"""

from __future__ import annotations

import atexit
import gc
import json
import sys
import time

from bench.serve_without import MEASURES


class Collections:
    """Counts and times collections."""

    def __init__(self) -> None:
        self.counts = [0, 0, 0]
        self.taken = 0.0
        self._began = 0.0

    def note(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.thread_time()
            return
        self.counts[info["generation"]] += 1
        self.taken += 1000 * (time.thread_time() - self._began)


if __name__ == "__main__":
    MEASURES[sys.argv.pop(1)]()
    collections = Collections()
    gc.callbacks.append(collections.note)
    atexit.register(lambda: print(json.dumps([collections.counts, collections.taken]), file=sys.stderr))
    from accordion.cli.main import main

    main()

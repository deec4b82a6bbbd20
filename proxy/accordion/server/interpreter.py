"""Settings of the whole interpreter, for a process that serves requests and does nothing else.

`python -m bench overrides` and `soak` measure what each is worth; a setting that is worth nothing goes.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from contextlib import suppress

# Seconds after which a running thread must give up the interpreter. At Python's default of 5 ms, the threads of the
# store and of compactions would hold it while a request waits: 5.1 ms at p99 in place of 1.2 ms.
_SWITCH_INTERVAL = 0.0005
# New objects, and collections of the younger generation, before the next collection. Reference counting frees nearly
# all objects of a request, so at Python's default of 700 a collection finds little: 15 µs a small request for nothing.
_THRESHOLDS = (50_000, 20, 50)
# Heaps of the C library. At glibc's default of 8 a core, each thread of the store and of compactions has a heap of its
# own, and keeps free memory there that no other thread can use: 16 MB after 21 minutes in place of 4 to 5 MB.
_MAX_HEAPS = 2
_M_ARENA_MAX = -8
"""The number of this option in glibc's malloc.h."""


def set_up_interpreter() -> None:
    """Sets how often garbage is collected and threads change, and how many heaps the threads share."""
    gc.set_threshold(*_THRESHOLDS)
    sys.setswitchinterval(_SWITCH_INTERVAL)
    if "MALLOC_ARENA_MAX" not in os.environ:
        # Other C libraries have no such function.
        with suppress(AttributeError):
            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _MAX_HEAPS)

"""The index of memories imports numpy with one thread, and its codes are stored."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from accordion.features.memory.memories import ALL_TYPES
from accordion.features.memory.store import memory_index as memories_index


@pytest.mark.parametrize(("given", "threads"), [({}, "1"), ({"OPENBLAS_NUM_THREADS": "3"}, "3")])
def test_matrices_are_not_divided_among_threads_unless_somebody_says_so(given, threads):
    kept = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    asked = "import os, accordion; print(os.environ['OPENBLAS_NUM_THREADS'])"
    told = subprocess.run([sys.executable, "-c", asked], env=kept | given, capture_output=True, check=True, text=True)
    assert told.stdout.strip() == threads


def test_every_type_has_a_code_that_never_changes():
    assert dict(memories_index._CODES) == {kind: code for code, kind in enumerate(ALL_TYPES, 1)}

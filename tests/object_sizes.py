"""The bytes that objects take in memory."""

from __future__ import annotations

import gc
import sys
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType

_ALLOCATION, _SMALL = 16, 512
"""Python's allocator rounds sizes up to this; malloc, which has what is larger than `_SMALL`, adds as much to each."""
_PROGRAM = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType)


def retained_bytes(*roots: object) -> int:
    """Returns the bytes of all objects that can be reached from these, but for the program's own."""
    waiting, known, total = list(roots), set[int](), 0
    while waiting:
        each = waiting.pop()
        if id(each) in known or isinstance(each, _PROGRAM):
            continue
        known.add(id(each))
        size = sys.getsizeof(each)
        total += -(-size // _ALLOCATION) * _ALLOCATION + (_ALLOCATION if size > _SMALL else 0)
        waiting += gc.get_referents(each)
        if isinstance(each, dict):  # of a dictionary whose keys are all strings, Python names only the values
            waiting += each
    return total

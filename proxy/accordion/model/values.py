"""A `dataclass` decorator for values that every request creates: frozen for the type checker, fast at run time.

A frozen dataclass writes each field through `object.__setattr__`, in Python code; a small request creates some twenty
values. So mypy sees the standard library's `dataclass(frozen=True, slots=True)`, while at run time the same fields
become a msgspec Struct, which is created in a quarter of the time. The class keeps its dataclass fields and repr, so
that `replace`, `fields` and `asdict` work, and it is encoded in the same way. Under `python -X dev` the standard
library's own decorator is used.

A class with subclasses uses `base`, which makes a dataclass, because a Struct reads the fields of its subclasses in its
own way. So does a class with fields that are excluded from `__init__` or from comparison.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

__all__ = ["base", "dataclass", "replace"]

if TYPE_CHECKING:
    from dataclasses import dataclass, replace
    from dataclasses import dataclass as base
else:
    import dataclasses

    import msgspec
    from msgspec import structs

    # Attributes of a class that its Struct must define anew.
    _REPLACED_ATTRIBUTES = frozenset({"__annotations__", "__dict__", "__weakref__"})

    def dataclass(*, frozen: bool, slots: bool):  # noqa: ANN201, D103
        plain = base(frozen=frozen, slots=slots)
        if not frozen or sys.flags.dev_mode:
            return plain
        return lambda cls: _struct(cls) if cls.__bases__ == (object,) else plain(cls)

    def base(*, frozen: bool, slots: bool):  # noqa: ANN201, D103
        if sys.flags.dev_mode:
            return dataclasses.dataclass(frozen=frozen, slots=slots)
        # Equal values have equal hashes, as with frozen dataclasses.
        return dataclasses.dataclass(slots=slots, unsafe_hash=frozen)

    def replace(value, /, **changes):  # noqa: ANN001, ANN003, ANN201, D103
        # `dataclasses.replace` goes through all fields, which takes ten times as long.
        replace_fields = structs.replace if isinstance(value, msgspec.Struct) else dataclasses.replace
        return replace_fields(value, **changes)

    def _struct(cls):  # noqa: ANN001, ANN202
        fields = dataclasses.fields(dataclasses.dataclass(init=False, eq=False, match_args=False)(cls))
        for field in fields:
            if not (field.init and field.compare and field.hash is None) or field.kw_only:
                raise TypeError(f"{cls.__qualname__}.{field.name}: a Struct treats all fields alike; use `base`")
        replaced = _REPLACED_ATTRIBUTES.union(field.name for field in fields)
        namespace = {name: value for name, value in vars(cls).items() if name not in replaced}
        namespace |= {"__qualname__": cls.__qualname__, "__rich_repr__": _rich_repr}
        typed = [(field.name, field.type, _default(field)) for field in fields]
        return msgspec.defstruct(cls.__name__, typed, namespace=namespace, module=cls.__module__, frozen=True)

    def _rich_repr(self):  # noqa: ANN001, ANN202
        # Without this, rich would print fields of a Struct that its repr leaves out.
        return [(field.name, getattr(self, field.name)) for field in dataclasses.fields(self) if field.repr]

    def _default(field):  # noqa: ANN001, ANN202
        if field.default_factory is not dataclasses.MISSING:
            return msgspec.field(default_factory=field.default_factory)
        return msgspec.NODEFAULT if field.default is dataclasses.MISSING else field.default

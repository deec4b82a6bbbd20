"""`dataclass` for values that every request makes: frozen for the type checker, quick at run time.

A frozen dataclass writes each field through `object.__setattr__`, and any dataclass is made by Python code; a small
request makes some twenty. So mypy sees the standard library's `dataclass(frozen=True, slots=True)` and holds every
module to it, while at run time the same fields make a msgspec Struct, in a quarter of the time. It keeps its dataclass
fields and repr, so that `replace`, `fields` and `asdict` work, and it is encoded as before. `python -X dev` has the
standard library's own.

A class that others derive from takes `base`, which stays a dataclass: a Struct would read what they say of their
fields in its own way. So does one with fields that are not given, or not compared, like the others.
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

    # What a Struct makes anew of every class.
    _LEFT = frozenset({"__annotations__", "__dict__", "__weakref__"})

    def dataclass(*, frozen: bool, slots: bool):  # noqa: ANN201, D103
        plain = base(frozen=frozen, slots=slots)
        if not frozen or sys.flags.dev_mode:
            return plain
        return lambda cls: _struct(cls) if cls.__bases__ == (object,) else plain(cls)

    def base(*, frozen: bool, slots: bool):  # noqa: ANN201, D103
        if sys.flags.dev_mode:
            return dataclasses.dataclass(frozen=frozen, slots=slots)
        # Equal values hash alike, as those of frozen dataclasses do.
        return dataclasses.dataclass(slots=slots, unsafe_hash=frozen)

    def replace(value, /, **changes):  # noqa: ANN001, ANN003, ANN201, D103
        # The standard library's walks over all fields, which takes ten times as long.
        known = structs.replace if isinstance(value, msgspec.Struct) else dataclasses.replace
        return known(value, **changes)

    def _struct(cls):  # noqa: ANN001, ANN202
        fields = dataclasses.fields(dataclasses.dataclass(init=False, eq=False, match_args=False)(cls))
        for field in fields:
            if not (field.init and field.compare and field.hash is None) or field.kw_only:
                raise TypeError(f"{cls.__qualname__}.{field.name}: a Struct treats all fields alike; use `base`")
        left = _LEFT.union(field.name for field in fields)
        namespace = {name: held for name, held in vars(cls).items() if name not in left}
        namespace |= {"__qualname__": cls.__qualname__, "__rich_repr__": _shown}
        typed = [(field.name, field.type, _default(field)) for field in fields]
        return msgspec.defstruct(cls.__name__, typed, namespace=namespace, module=cls.__module__, frozen=True)

    def _shown(self):  # noqa: ANN001, ANN202
        # To rich a Struct would show what its repr does not.
        return [(field.name, getattr(self, field.name)) for field in dataclasses.fields(self) if field.repr]

    def _default(field):  # noqa: ANN001, ANN202
        if field.default_factory is not dataclasses.MISSING:
            return msgspec.field(default_factory=field.default_factory)
        return msgspec.NODEFAULT if field.default is dataclasses.MISSING else field.default

"""Structs whose repr leaves out some of their fields: keys, credentials and what clients wrote."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec


class StructWithHiddenFields(msgspec.Struct, frozen=True):
    """A Struct whose repr leaves out the fields that `hidden_fields` names, in logs and in colour (rich) too."""

    hidden_fields: ClassVar[frozenset[str]] = frozenset()

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"{type(self).__name__}({fields})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Returns the names and values that may be shown; rich calls it."""
        return [(name, getattr(self, name)) for name in self.__struct_fields__ if name not in self.hidden_fields]

"""Values whose repr leaves out secrets."""

from __future__ import annotations

import dataclasses
import pkgutil
from importlib import import_module

import msgspec
import pytest
from msgspec.structs import replace
from rich.pretty import pretty_repr

import accordion
from accordion.model.hidden_fields import StructWithHiddenFields


class Parcel(StructWithHiddenFields, frozen=True):
    """A value with a secret."""

    hidden_fields = frozenset({"secret"})

    to: str
    weight: int = 1
    secret: bytes = b""


class LabelledParcel(Parcel, frozen=True):
    """A value that inherits the secret."""

    label: str = ""


def test_a_repr_leaves_out_hidden_fields() -> None:
    assert repr(Parcel("a", secret=b"key")) == "Parcel(to='a', weight=1)"
    assert repr(LabelledParcel("a", label="b", secret=b"key")) == "LabelledParcel(to='a', weight=1, label='b')"


def test_a_coloured_print_leaves_out_hidden_fields() -> None:
    assert "key" not in pretty_repr(Parcel("a", secret=b"key"))


def test_hidden_fields_count_in_equality_and_in_copies() -> None:
    parcel = Parcel("a", secret=b"key")
    assert parcel != Parcel("a")
    assert hash(parcel) != hash(Parcel("a"))
    assert replace(parcel, weight=2).secret == b"key"
    with pytest.raises(AttributeError):
        parcel.weight = 2  # type: ignore[misc]  # frozen


def test_hidden_fields_are_stored() -> None:
    parcel = Parcel("a", secret=b"key")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(parcel), type=Parcel) == parcel


def structs() -> list[type[msgspec.Struct]]:
    """Returns every Struct of the package."""
    for module in pkgutil.walk_packages(accordion.__path__, "accordion."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    found, waiting = [], [msgspec.Struct]
    while waiting:
        waiting += (below := waiting.pop().__subclasses__())
        found += below
    return [each for each in found if each.__module__.startswith("accordion.")]


def test_hidden_fields_exist() -> None:
    for struct in structs():
        if issubclass(struct, StructWithHiddenFields):
            assert struct.hidden_fields <= set(struct.__struct_fields__), struct


def test_values_are_no_dataclasses() -> None:
    assert not [struct for struct in structs() if dataclasses.is_dataclass(struct)]

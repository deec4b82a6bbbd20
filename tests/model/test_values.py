"""Values: frozen, quick to make, and dataclasses to whoever asks."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping

import msgspec
import pytest
from rich.pretty import pretty_repr

from accordion.model.values import base, dataclass, replace


@dataclass(frozen=True, slots=True)
class Parcel:
    """What is sent."""

    to: str
    weight: int = 1
    marks: Mapping[str, int] = dataclasses.field(default_factory=dict)
    secret: bytes = dataclasses.field(default=b"", repr=False)

    @property
    def heavy(self) -> bool:
        return self.weight > 20


@dataclasses.dataclass(frozen=True, slots=True)
class PlainParcel:
    to: str
    weight: int = 1
    marks: Mapping[str, int] = dataclasses.field(default_factory=dict)
    secret: bytes = dataclasses.field(default=b"", repr=False)


@base(frozen=True, slots=True)
class Sized:
    size: int = 0


@dataclass(frozen=True, slots=True)
class Named(Sized):
    name: str = ""
    held: Mapping[str, int] = dataclasses.field(default_factory=dict)


@dataclass(frozen=False, slots=True)
class Counter:
    count: int = 0


def test_a_value_cannot_be_changed_but_where_it_says_so() -> None:
    with pytest.raises(AttributeError):
        Parcel("a").weight = 2  # type: ignore[misc]  # what is tested
    counter = Counter()
    counter.count += 1
    assert counter == Counter(1)


def test_values_are_equal_and_hash_alike_where_their_fields_are_equal() -> None:
    assert Parcel("a", 2) == Parcel("a", 2) != Parcel("a", 3)
    assert hash(Parcel("a", marks=())) == hash(Parcel("a", marks=()))  # type: ignore[arg-type]


def test_a_value_is_a_dataclass_to_replace_and_fields() -> None:
    heavy = dataclasses.replace(Parcel("a", marks={"x": 1}), weight=30)
    assert (heavy.heavy, heavy.to, heavy.marks) == (True, "a", {"x": 1})
    assert [field.name for field in dataclasses.fields(heavy)] == ["to", "weight", "marks", "secret"]
    assert dataclasses.asdict(heavy) == {"to": "a", "weight": 30, "marks": {"x": 1}, "secret": b""}
    assert Parcel("a").marks is not Parcel("a").marks


def test_replace_makes_another_of_the_same_kind_of_whatever_is_a_value() -> None:
    class Own(Parcel):
        """Another kind."""

    assert replace(Parcel("a"), weight=30) == Parcel("a", 30)
    assert replace(Named(3, "a"), size=4) == Named(4, "a")
    assert replace(Counter(), count=2) == Counter(2)
    assert type(replace(Own("a"), weight=2)) is Own
    with pytest.raises(TypeError):
        replace(Parcel("a"), height=2)  # type: ignore[call-arg]  # what is tested


def test_a_value_tells_of_itself_without_what_is_not_to_be_shown() -> None:
    assert repr(Parcel("a", secret=b"key")) == "Parcel(to='a', weight=1, marks={})"
    assert Parcel.__doc__ == "What is sent."
    assert (Parcel.__module__, Parcel.__qualname__) == (__name__, "Parcel")


def test_a_value_shows_no_more_to_those_who_print_in_colour() -> None:
    assert "key" not in pretty_repr(Parcel("a", secret=b"key"))


@pytest.mark.parametrize("odd", [{"compare": False}, {"init": False}, {"kw_only": True}, {"hash": False}])
def test_a_field_that_a_value_would_treat_like_any_other_is_refused(odd: dict[str, bool]) -> None:
    class Odd:
        size: int = dataclasses.field(default=0, **odd)  # type: ignore[call-overload]  # any of them

    if sys.flags.dev_mode:
        dataclass(frozen=True, slots=True)(Odd)
        return
    with pytest.raises(TypeError, match="size"):
        dataclass(frozen=True, slots=True)(Odd)


def test_a_value_is_encoded_as_a_dataclass_is_and_decoded_again() -> None:
    fields = ("a", 2, {"x": 1}, b"key")
    for encode in (msgspec.msgpack.encode, msgspec.json.encode):
        assert encode(Parcel(*fields)) == encode(PlainParcel(*fields))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(Parcel(*fields)), type=Parcel) == Parcel(*fields)


def test_a_value_may_derive_from_a_base() -> None:
    named = Named(3, "a")
    assert (named.size, named.name, named.held) == (3, "a", {})
    assert dataclasses.replace(named, size=4) == Named(4, "a")

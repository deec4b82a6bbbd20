from dataclasses import dataclass, fields
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.budget import Utilization
from proxy.core.records import Exchange, Session, Totals, Usage
from proxy.storage.codec import decoder, encode

RECORDS = [Exchange, Session, Usage, Totals, Utilization]


st.register_type_strategy(int, st.integers(-(2**63), 2**63 - 1))


@given(st.one_of(*(st.from_type(kind) for kind in RECORDS)))
def test_a_record_comes_back_as_it_was(record: object):
    decode = decoder(type(record))
    assert repr(decode(encode(record))) == repr(record)


@dataclass(frozen=True, slots=True)
class Inner:
    x: int
    y: int


@dataclass(frozen=True, slots=True)
class InnerBefore:
    x: int


@dataclass(frozen=True, slots=True)
class Now:
    name: str
    inner: Inner
    many: tuple[Inner, ...]
    kind: Literal["one", "two"]
    maybe: Inner | None
    share: float
    words: tuple[str, ...]
    given: int = 7


@dataclass(frozen=True, slots=True)
class Before:
    name: str
    many: tuple[InnerBefore, ...]
    maybe: InnerBefore


@dataclass(frozen=True, slots=True)
class Later:
    name: str
    inner: Inner
    many: tuple[Inner, ...]
    kind: Literal["one", "two"]
    maybe: Inner | None
    share: float
    words: tuple[str, ...]
    given: int
    unheard: dict[str, int]


def test_fields_of_a_later_version_are_passed_over():
    later = Later("n", Inner(1, 2), (Inner(3, 4),), "two", None, 0.5, ("w",), 8, {"of": 1})
    assert decoder(Now)(encode(later)) == Now("n", Inner(1, 2), (Inner(3, 4),), "two", None, 0.5, ("w",), 8)


def test_fields_that_an_earlier_version_did_not_write_are_empty():
    before = Before("n", (InnerBefore(3),), InnerBefore(5))
    assert decoder(Now)(encode(before)) == Now("n", Inner(0, 0), (Inner(3, 0),), "one", Inner(5, 0), 0.0, ())


@pytest.mark.parametrize("kind", RECORDS)
def test_each_record_can_be_read_without_any_one_of_its_fields(kind: type):
    whole = {field.name: getattr(decoder(kind)(encode({})), field.name) for field in fields(kind)}
    for name in whole:
        rest = {other: value for other, value in whole.items() if other != name}
        assert decoder(kind)(encode(rest)) == decoder(kind)(encode(whole))


@given(st.binary(max_size=40))
def test_what_is_no_record_raises_value_error(data: bytes):
    try:
        record = decoder(Session)(data)
    except ValueError:
        return
    assert isinstance(record, Session)


@pytest.mark.parametrize("data", [b"", b"\xc1", encode([1, 2]), encode({"id": 5}), encode(None)])
def test_bytes_of_something_else_raise_value_error(data: bytes):
    with pytest.raises(ValueError, match="not a Session"):
        decoder(Session)(data)

"""Request bodies as no client should write them, and as some do."""

from __future__ import annotations

from hypothesis import strategies as st

_SPACE = st.text(" \t\n\r", max_size=3).map(str.encode)
_NUMBERS = st.sampled_from(
    ["0", "-0", "1e400", "-1E+999", "0.1e-999", "1" + "0" * 400, "3.000", "1E5", "12345678901234567890123", "0.1"]
)
_ESCAPES = (
    r"\ud800",
    r"\udc00\ud800",
    r"\uD83D\uDE00",
    r"\u0000",
    r"\/",
    r"\n",
    r"\"",
    r"\\",
    r"\u00e9",
    "\u2028",
    "\x7f",
)
_PIECES = st.one_of(
    st.text(st.characters(blacklist_categories=("Cs", "Cc"), blacklist_characters='"\\'), max_size=6),
    st.sampled_from(_ESCAPES),
)
_STRINGS = st.lists(_PIECES, max_size=4).map(lambda pieces: ('"' + "".join(pieces) + '"').encode())
_FIELD_NAMES = b"model messages input contents role content parts stream tools type system".split()
_NAMES = st.one_of(_STRINGS, st.sampled_from([b'"%b"' % name for name in _FIELD_NAMES]))
_WORDS = st.sampled_from([b"true", b"false", b"null", b'"user"', b'"assistant"', b'"tool"', b'"text"', b'"gpt-4o"'])
_SCALARS = st.one_of(_NUMBERS.map(str.encode), _STRINGS, _WORDS)


def _spaced(*parts: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    return st.tuples(*(piece for part in parts for piece in (_SPACE, part)), _SPACE).map(b"".join)


def _list(values: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    return st.lists(_spaced(values), max_size=4).map(lambda found: b"[" + b",".join(found) + b"]")


def _object(values: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    field = _spaced(_NAMES, st.just(b":"), values)
    return st.lists(field, max_size=4).map(lambda found: b"{" + b",".join(found) + b"}")


VALUES = st.recursive(_SCALARS, lambda values: _list(values) | _object(values), max_leaves=12)
"""Any JSON, oddly spelt: duplicate names, huge numbers, lone surrogates, white space."""


def _request(fields: list[bytes], messages: bytes, more: list[bytes], listing: bytes) -> bytes:
    named = b'"model" : "gpt-4o"'
    return b"{" + b" ,\n".join([*fields, named, b'"%s":%s' % (listing, messages), *more]) + b"}"


_FIELDS = st.lists(_spaced(_NAMES, st.just(b":"), VALUES), max_size=2)
_LISTING = st.sampled_from([b"messages", b"input", b"contents"])
REQUESTS = st.builds(_request, _FIELDS, _list(_object(VALUES)) | VALUES, _FIELDS, _LISTING)
"""What has the outline of a request, and anything in it."""

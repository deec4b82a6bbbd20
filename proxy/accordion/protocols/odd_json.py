"""Makes bodies readable that are almost JSON, and restores their bytes.

Some clients cut texts within a character, or encode numbers that JSON lacks: lone surrogates as escapes, invalid
UTF-8, `NaN`, `Infinity`, numbers beyond any range, a byte order mark. Providers take such bodies. Each value gets a
character of Unicode's last private plane in its place, so that all other code reads, keys, encrypts and stores ordinary
JSON. What is sent has the values as they came.
"""

from __future__ import annotations

import re

_INVALID_BYTE, _SURROGATE, _VALUE = 0x10F700, 0x10F800, "\U0010f700"
"""The first characters for invalid bytes (0x80 to 0xFF) and for lone surrogates, and the one before other values."""
_MARKS = re.compile("[\U0010f700-\U0010ffff]")
_MARK_BYTES = re.compile(rb'"\xf4\x8f\x9c\x80([^"\\]*)"|(\xf4\x8f[\x9c-\xbf][\x80-\xbf])')
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

_ESCAPES = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u([dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)
_VALUES = re.compile(
    r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
    r"|(-?(?:NaN|Infinity)\b|-?\d{19,}(?:\.\d*)?(?:[eE][+-]?\d+)?|-?\d+(?:\.\d*)?[eE]\+?\d{3,})",
    re.DOTALL,
)
_INVALID_BYTES = {0xDC00 + byte: _INVALID_BYTE + byte for byte in range(0x80, 0x100)}
_UNREADABLE = "�"


def make_readable(body: bytes) -> bytes | None:
    """Returns a body in which every value that JSON lacks is marked; None if there is none, or marks were in it."""
    text = body.removeprefix(_BYTE_ORDER_MARK).decode("utf-8", "surrogateescape")
    if _MARKS.search(text) is not None:
        return None
    text = _ESCAPES.sub(_mark_escape, text.translate(_INVALID_BYTES) if not text.isascii() else text)
    readable = _VALUES.sub(_mark_value, text).encode()
    return readable if readable != body else None


def restore_values(body: bytes) -> bytes:
    """Returns a body with the values in place of their marks."""
    return _MARK_BYTES.sub(_restore_mark, body)


def replace_marks(body: bytes) -> bytes:
    """Returns a body, or a text, with valid JSON in place of the marks: a replacement character, or null."""
    if b"\xf4\x8f" not in body:
        return body
    return _MARK_BYTES.sub(_replace_mark, body)


def _mark_escape(match: re.Match[str]) -> str:
    return match[0] if match[1] is None else chr(_SURROGATE + int(match[1], 16) - 0xD800)


def _mark_value(match: re.Match[str]) -> str:
    return match[0] if match[1] is None else f'"{_VALUE}{match[1]}"'


def _replace_mark(match: re.Match[bytes]) -> bytes:
    return b"null" if match[2] is None else b"" if match[2] == _VALUE.encode() else _UNREADABLE.encode()


def _restore_mark(match: re.Match[bytes]) -> bytes:
    if match[2] is None:
        return match[1]
    if match[2] == _VALUE.encode():
        # A text of ours, such as a summary, quotes the value.
        return b""
    code = ord(match[2].decode())
    return b"\\u%04x" % (code - _SURROGATE + 0xD800) if code >= _SURROGATE else bytes([code - _INVALID_BYTE])

"""The base class of sections, and types that YAML does not have: sizes, URLs, and secrets that are never printed."""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterator, Mapping
from ipaddress import IPv6Address, ip_address
from typing import Annotated, Any, ClassVar, Self, cast
from urllib.parse import quote, unquote, urlsplit

import msgspec

from accordion.model.suggestions import describe_choices
from accordion.stores.encryption import read_keys

_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,15})?) ?(b|kb|mb|gb|kib|mib|gib)?", re.IGNORECASE)
_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\x20-\x7e\t]*")
_HOST = re.compile(r"[^\s\[\]:/?#@\\\0]+")
_HIDDEN = "***"
_HOME = "sqlite:///~/"
_SERVER = re.compile(r"(?:redis|valkey)s?(?:\+cluster)?://")

Count = Annotated[int, msgspec.Meta(ge=1, le=10**12)]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=86_400)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


class ConfigSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A mapping of the file. An unknown key is an error."""


class Size(int):
    """A number of bytes; in the file a whole number or a text such as "64MiB"."""

    @classmethod
    def read(cls, value: object) -> Size:
        """Raises ValueError for anything but a number of bytes of at least 0."""
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return cls(value)
        if isinstance(value, str) and (match := _SIZE.fullmatch(value)):
            return cls(float(match[1]) * _UNITS[(match[2] or "").lower()])
        raise ValueError('Expected a size: a number of bytes, or a text such as "64MiB"')


class _Word(str):
    """One of a few words, including `off`."""

    __slots__ = ()
    words: ClassVar[tuple[str, ...]]

    @classmethod
    def read(cls, value: object) -> Self:
        """Raises ValueError for any other word."""
        # YAML reads `off` without quotes as false.
        word = "off" if value is False else value
        if not isinstance(word, str) or word not in cls.words:
            raise ValueError(f"Expected {describe_choices(word, cls.words)}")
        return cls(word)


class CompactionMode(_Word):
    """Whether requests are compacted: `auto`, `observe` or `off`."""

    __slots__ = ()
    words = ("auto", "observe", "off")


class RecordMode(_Word):
    """The conversations whose transcripts are recorded: `off`, `compacted` or `all`."""

    __slots__ = ()
    words = ("off", "compacted", "all")


class SocketMode(_Word):
    """What is done with WebSockets at /v1/responses: `read`, `relay` (in the file also true) or `refuse` (false)."""

    __slots__ = ()
    words = ("read", "relay", "refuse")

    @classmethod
    def read(cls, value: object) -> Self:
        """Raises ValueError for any other word."""
        return super().read(_BOOLEAN_SOCKET_MODES.get(str(value).lower(), value))


_BOOLEAN_SOCKET_MODES = {"true": "relay", "false": "refuse"}


class Host(str):
    """An address to listen on: a name, an IPv4 address, or an IPv6 address, which is kept without brackets."""

    __slots__ = ()

    @classmethod
    def read(cls, value: object) -> Host:
        """Raises ValueError for anything but an address without a port."""
        text = str(value)
        if text.startswith("[") and text.endswith("]"):
            text = text[1:-1]
        if not isinstance(value, str) or not 0 < len(text) <= 256 or not (_is_ipv6(text) or _HOST.fullmatch(text)):
            raise ValueError("Expected an address such as 127.0.0.1 or ::1, without a port, which is server.port")
        return cls(text)

    def with_port(self, port: int) -> str:
        """Formats the address with a port; an IPv6 address has brackets (RFC 3986 3.2.2)."""
        return f"[{self}]:{port}" if ":" in self else f"{self}:{port}"


def _is_ipv6(text: str) -> bool:
    try:
        return isinstance(ip_address(text), IPv6Address)
    except ValueError:
        return False


class BaseUrl(str):
    """The base of a provider's URLs."""

    __slots__ = ()

    @classmethod
    def read(cls, value: object) -> BaseUrl:
        """Raises ValueError for anything but http(s)://host[:port][/path]."""
        if not isinstance(value, str) or not _is_base(value):
            raise ValueError("Expected a URL such as https://host/v1, without credentials, query and fragment")
        return cls(value)


class Secret:
    """A text that is never printed: `repr`, `str` and formatting return `***`."""

    __slots__ = ("_value",)

    def __init__(self, value: str = "") -> None:
        self._value = value

    @classmethod
    def read(cls, value: object) -> Secret:
        """Raises ValueError for anything but a text that is valid in a header."""
        if not isinstance(value, str) or not _HEADER_VALUE.fullmatch(value) or value != value.strip():
            raise ValueError("Expected a text of printable ASCII characters (put a number in quotes)")
        return cls(value)

    def reveal(self) -> str:
        """Returns the text itself."""
        return self._value

    def __bool__(self) -> bool:
        return bool(self._value)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __repr__(self) -> str:
        return _HIDDEN


class Keys(Secret):
    """Keys of 32 bytes for the archive. The first one encrypts; all of them decrypt."""

    __slots__ = ()

    @classmethod
    def read(cls, value: object) -> Keys:
        """Raises ValueError for anything else."""
        text = Secret.read(value).reveal()
        read_keys(text)
        return cls(text)


class StoreUrl(Secret):
    """The store's URL. It may contain a password, so only the scheme and host of a server are printed."""

    __slots__ = ()

    @classmethod
    def read(cls, value: object) -> StoreUrl:
        """Raises ValueError for a URL of an unknown kind of store."""
        if not isinstance(value, str) or not _is_store(value):
            raise ValueError(
                "Expected sqlite:///relative/path, sqlite:////absolute/path, redis://host:port/number "
                "(or rediss, valkey, valkeys, each also with +cluster) or memory://"
            )
        return cls(value)

    def reveal(self) -> str:
        """Returns the URL itself; `~` at the beginning of an SQLite path is expanded."""
        if self._value.startswith(_HOME):
            return _HOME.removesuffix("~/") + quote(os.path.expanduser("~")) + self._value[len(_HOME) - 1 :]
        return self._value

    def __repr__(self) -> str:
        if not _SERVER.match(self._value):
            return self._value
        parts = urlsplit(self._value)
        credentials, at, host = parts.netloc.rpartition("@")
        return f"{parts.scheme}://{_HIDDEN if credentials else ''}{at}{host}"


class SecretMapping(Mapping[str, Any]):
    """Names with values that may be secret; only the names are printed."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        self._values = dict(values or {})

    @classmethod
    def read(cls, value: object) -> SecretMapping:
        """Raises ValueError for anything but a mapping."""
        if not isinstance(value, Mapping):
            raise ValueError("Expected a mapping of names to values")
        return cls(value)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return "{" + ", ".join(f"{name}: {_HIDDEN}" for name in self._values) + "}"


class HeaderTable(SecretMapping):
    """Headers of every request for a model."""

    __slots__ = ()

    @classmethod
    def read(cls, value: object) -> HeaderTable:
        """Raises ValueError for anything that cannot be sent as headers."""
        if not isinstance(value, Mapping):
            raise ValueError("Expected a mapping of header names to texts")
        for name, text in value.items():
            if not _HEADER_NAME.fullmatch(name) or not isinstance(text, str) or not _HEADER_VALUE.fullmatch(text):
                raise ValueError(f"Header `{name}` cannot be sent: expected a name and a text of printable ASCII")
        return cls(value)


def decode(kind: type, value: object) -> object:
    """Reads a value of a type with a method `read`, such as these (msgspec's `dec_hook`). Raises ValueError.

    A value that already has the type is returned unchanged. No error contains a text of the file.
    """
    return value if isinstance(value, kind) else cast(Any, kind).read(value)


def _is_base(value: str) -> bool:
    try:
        parts = urlsplit(value)
        port = parts.port
        (parts.hostname or "").encode("idna")  # as name resolution does, which requires labels of 1 to 63 characters
    except ValueError:
        return False
    plain = value.isascii() and value.isprintable() and not set(value) & set(" ?#@\\")
    return plain and parts.scheme in ("http", "https") and bool(parts.hostname) and port != 0


def _is_store(value: str) -> bool:
    if value.startswith("sqlite:///"):
        named = len(value) > len("sqlite:///") and not value.endswith("/")
        return named and ":memory:" not in value and "\0" not in unquote(value)
    if _SERVER.match(value):
        try:
            parts = urlsplit(value)
            # An unencoded `@`, `#` or `/` in a password would end the host's part early and print the password.
            whole = "@" not in parts.path + parts.query and not parts.fragment and value.isprintable()
            return whole and parts.port != 0 and bool(parts.hostname)
        except ValueError:
            return False
    return value == "memory://"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a listening address."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False

"""Which headers belong to one connection only, and what is put in their place on the next one."""

from __future__ import annotations

from accordion.core.ports import Headers

HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""RFC 9110 7.6.1 with RFC 2616 13.5.1. `Trailer` goes with the trailers, which are discarded (RFC 9110 6.5.1)."""
_NOT_AS_IT_CAME = HOP_BY_HOP | {b"host", b"content-length"}


def end_to_end(headers: Headers) -> Headers:
    """The headers that an intermediary passes on: all but the hop-by-hop ones and those that `Connection` names."""
    named: set[bytes] = set()
    kept = []
    for header in headers:
        name = header[0].lower()
        if name not in HOP_BY_HOP:
            kept.append(header)
        elif name == b"connection":
            named.update(option.strip().lower() for option in header[1].split(b","))
    return tuple([header for header in kept if header[0].lower() not in named] if named else kept)


def outgoing(headers: Headers, host: str, method: str, size: int | None) -> tuple[Headers, int | None]:
    """A client's headers as they go to `host`, and the length in bytes that they declare of the body.

    `size` is the body's where it is known; else the client's own Content-Length counts, and without one the body
    goes out chunked. Order and case stay; what is replaced stays in its place.
    """
    result: list[tuple[bytes, bytes]] = []
    declared = size
    named = addressed = False
    for header in headers:
        name = header[0].lower()
        if name not in _NOT_AS_IT_CAME:
            result.append(header)
        elif name == b"host":
            if not addressed:
                result.append((header[0], host.encode()))
            addressed = True
        elif name == b"content-length":
            if size is not None and not named:
                result.append((header[0], b"%d" % size))
            elif not named and header[1].isdigit():
                declared = int(header[1])
                result.append(header)
            named = True
        else:
            return outgoing(end_to_end(headers), host, method, size)
    if not addressed:
        result.insert(0, (b"Host", host.encode()))
    if size is None and declared is None:
        result.append((b"Transfer-Encoding", b"chunked"))
    elif size is not None and not named and (size or method in {"POST", "PUT", "PATCH"}):
        result.append((b"Content-Length", b"%d" % size))
    return tuple(result), declared

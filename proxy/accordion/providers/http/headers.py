"""Removes hop-by-hop headers and writes the headers of outgoing requests."""

from __future__ import annotations

from accordion.model.ports import Headers

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
"""RFC 9110 7.6.1 with RFC 2616 13.5.1. `Trailer` is removed because trailers are discarded (RFC 9110 6.5.1)."""
_REWRITTEN_HEADERS = HOP_BY_HOP | {b"host", b"content-length"}


def end_to_end(headers: Headers) -> Headers:
    """Returns the headers that an intermediary forwards: not the hop-by-hop ones, nor those named in `Connection`."""
    connection_options: set[bytes] = set()
    remaining = []
    for header in headers:
        name = header[0].lower()
        if name not in HOP_BY_HOP:
            remaining.append(header)
        elif name == b"connection":
            connection_options.update(option.strip().lower() for option in header[1].split(b","))
    if connection_options:
        remaining = [header for header in remaining if header[0].lower() not in connection_options]
    return tuple(remaining)


def outgoing_headers(headers: Headers, host: str, method: str, size: int | None) -> tuple[Headers, int | None]:
    """Returns a client's headers as sent to `host`, and the body length in bytes that they declare.

    `size` is the body's size if it is known. Otherwise the client's Content-Length holds, and without one the body is
    sent chunked. Headers keep their order and case; a replaced header keeps its position.
    """
    result: list[tuple[bytes, bytes]] = []
    declared = size
    has_length = has_host = False
    for header in headers:
        name = header[0].lower()
        if name not in _REWRITTEN_HEADERS:
            result.append(header)
        elif name == b"host":
            if not has_host:
                result.append((header[0], host.encode()))
            has_host = True
        elif name == b"content-length":
            if size is not None and not has_length:
                result.append((header[0], b"%d" % size))
            elif not has_length and header[1].isdigit():
                declared = int(header[1])
                result.append(header)
            has_length = True
        else:
            return outgoing_headers(end_to_end(headers), host, method, size)
    if not has_host:
        result.insert(0, (b"Host", host.encode()))
    if size is None and declared is None:
        result.append((b"Transfer-Encoding", b"chunked"))
    elif size is not None and not has_length and (size or method in {"POST", "PUT", "PATCH"}):
        result.append((b"Content-Length", b"%d" % size))
    return tuple(result), declared

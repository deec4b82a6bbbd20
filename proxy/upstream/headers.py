"""Which headers belong to one connection only, and what is put in their place on the next one."""

from __future__ import annotations

from operator import itemgetter

from proxy.core.ports import Headers

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
_NAME = itemgetter(0)


def end_to_end(headers: Headers) -> Headers:
    """The headers that an intermediary passes on: all but the hop-by-hop ones and those that `Connection` names."""
    if HOP_BY_HOP.isdisjoint(map(bytes.lower, map(_NAME, headers))):
        return headers
    dropped = HOP_BY_HOP
    kept = []
    for header in headers:
        name = header[0].lower()
        if name in HOP_BY_HOP:
            if name == b"connection":
                dropped = dropped | {option.strip().lower() for option in header[1].split(b",")}
        else:
            kept.append(header)
    if dropped is HOP_BY_HOP:
        return tuple(kept)
    return tuple(header for header in kept if header[0].lower() not in dropped)


def outgoing(headers: Headers, host: str, method: str, size: int | None) -> tuple[Headers, int | None]:
    """A client's headers as they go to `host`, and the length in bytes that they declare of the body.

    `size` is the body's where it is known; else the client's own Content-Length counts, and without one the body
    goes out chunked. Order and case stay; what is replaced stays in its place.
    """
    headers = end_to_end(headers)
    names = list(map(bytes.lower, map(_NAME, headers)))
    if size is not None and names.count(b"host") == names.count(b"content-length") == 1:
        # Nearly all requests: a loop over all headers would take twice as long.
        sent = list(headers)
        for name, value in ((b"host", host.encode()), (b"content-length", b"%d" % size)):
            at = names.index(name)
            sent[at] = (headers[at][0], value)
        return tuple(sent), size
    result: list[tuple[bytes, bytes]] = []
    declared = size
    named = addressed = False
    for lower, (name, value) in zip(names, headers, strict=True):
        if lower == b"host":
            if not addressed:
                result.append((name, host.encode()))
            addressed = True
        elif lower == b"content-length":
            if size is not None and not named:
                result.append((name, b"%d" % size))
            elif not named and value.isdigit():
                declared = int(value)
                result.append((name, value))
            named = True
        else:
            result.append((name, value))
    if not addressed:
        result.insert(0, (b"Host", host.encode()))
    if size is None and declared is None:
        result.append((b"Transfer-Encoding", b"chunked"))
    elif size is not None and not named and (size or method in {"POST", "PUT", "PATCH"}):
        result.append((b"Content-Length", b"%d" % size))
    return tuple(result), declared

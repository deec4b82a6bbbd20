"""Lists the wire protocols, and finds that of a request.

A new protocol is a package beside the others and a line here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import unquote

from accordion.model.errors import AccordionError
from accordion.model.http import Outbound
from accordion.model.ports import Family
from accordion.protocols.anthropic_messages.protocol import AnthropicMessages, MessagesArtifactTool
from accordion.protocols.base import Endpoint, WireProtocol
from accordion.protocols.bedrock_converse.protocol import BedrockConverse, ConverseArtifactTool
from accordion.protocols.clouds import cloud_error, find_cloud, find_cloud_endpoint, is_cloud_path
from accordion.protocols.gemini.protocol import Gemini, GeminiArtifactTool
from accordion.protocols.openai_chat.protocol import ChatArtifactTool, OpenAIChat
from accordion.protocols.openai_responses.protocol import OpenAIResponses, ResponsesArtifactTool
from accordion.protocols.tool_loop import ArtifactToolProtocol

_ENTRIES: tuple[tuple[WireProtocol, ArtifactToolProtocol], ...] = (
    (OpenAIChat(), ChatArtifactTool()),
    (OpenAIResponses(), ResponsesArtifactTool()),
    (AnthropicMessages(), MessagesArtifactTool()),
    (Gemini(), GeminiArtifactTool()),
    (BedrockConverse(), ConverseArtifactTool()),
)
"""The protocols, each with its side of the artifact tool. The first is that of requests which no other claims."""

PROTOCOLS: Mapping[str, WireProtocol] = {protocol.name: protocol for protocol, _ in _ENTRIES}
"""The protocols by name."""

ARTIFACT_TOOLS: Mapping[str, ArtifactToolProtocol] = {protocol.name: tool for protocol, tool in _ENTRIES}
"""The implementations of the artifact tool by their protocol's name."""

_DEFAULT = _ENTRIES[0][0]
_PERCENT = re.compile("%(?:25)+")


def find_protocol(path: str) -> tuple[WireProtocol, Endpoint] | None:
    """Returns the protocol that reads the requests of a path, and what the path says; None where none reads them."""
    for protocol in PROTOCOLS.values():
        if (endpoint := protocol.find_endpoint(path)) is not None:
            return protocol, endpoint
    cloud = find_cloud_endpoint(path)
    return (PROTOCOLS[cloud.protocol], cloud.endpoint) if cloud is not None else None


def unread_api_reason(path: str) -> str:
    """Returns why a request of a path is forwarded unread although a model answers it; empty for all other paths."""
    return next(filter(None, (protocol.unread_reason(path) for protocol in PROTOCOLS.values())), "")


def is_protocol_path(path: str) -> bool:
    """Returns whether a server could take a path for one whose requests a protocol reads and a model answers, also in
    another spelling."""
    found = find_protocol(path)
    if found is not None:
        return not (found[1].is_token_count or found[1].is_compaction)
    normalized = _normalize_path(path)
    return is_cloud_path(normalized) or any(protocol.is_path(normalized) for protocol in PROTOCOLS.values())


def family_for(path: str, fields: Mapping[bytes, bytes]) -> Family:
    """Returns the family of the API that a request is for: some providers also offer the protocol of another family."""
    if (cloud := find_cloud(path)) is not None:
        return cloud
    return (_find_addressed(path, fields) or protocol_for(path, fields)).family


def protocol_for(path: str, fields: Mapping[bytes, bytes]) -> WireProtocol:
    """Returns the protocol that reads a request, or else that of the provider's API that it is for. `fields` are the
    headers by name."""
    found = find_protocol(path)
    return found[0] if found is not None else _find_addressed(path, fields) or _DEFAULT


def _find_addressed(path: str, fields: Mapping[bytes, bytes]) -> WireProtocol | None:
    """Returns the protocol of the provider to whose API a request is addressed, by its path and its headers."""
    for protocol in PROTOCOLS.values():
        if protocol.is_addressed(path, fields):
            return protocol
    return None


def error_response(path: str, fields: Mapping[bytes, bytes], error: AccordionError, request_id: str) -> Outbound:
    """Returns the response for one of the proxy's own errors, in the form of a request's protocol and its cloud."""
    return cloud_error(path, protocol_for(path, fields).error_response(error, request_id))


def decode_path(path: str) -> str:
    """Returns a path without any percent-encoding, also where it is encoded more than once."""
    # An encoded percent sign may be encoded again any number of times: that is removed at once.
    while (decoded := unquote(_PERCENT.sub("%", path))) != path:
        path = decoded
    return path


def _normalize_path(path: str) -> str:
    """Returns a path as the most lenient server reads it: decoded, in small letters, without empty segments.

    RFC 3986 6.2.2 says which paths are equivalent; servers also join slashes and remove parameters of segments.
    """
    path = decode_path(path)
    segments = (segment.partition(";")[0].strip() for segment in path.lower().replace("\\", "/").split("/"))
    return "/" + "/".join(segment for segment in segments if segment not in ("", "."))

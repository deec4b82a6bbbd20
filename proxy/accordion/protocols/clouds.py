"""Paths at which clouds offer the protocols of others: Azure OpenAI, Vertex AI and Bedrock.

A cloud's request is one of Chat Completions, Responses, Messages or Gemini at a path of its own, which may name the
model and say whether the response is streamed. It is read by that protocol and sent to the cloud's upstream.

What is not read: signed requests (AWS Signature Version 4), because their signature covers the body and the host, and
Bedrock's `invoke` for other models than Claude, which have formats of their own. Bedrock's Converse API is a protocol
by itself (bedrock_converse/).

Sources: azure endpoints in the openai SDK (`lib/azure.py`); `AnthropicVertex` and `AnthropicBedrock` in the anthropic
SDK (`lib/vertex/_client.py`, `lib/bedrock/_client.py`); the API references of Vertex AI and Bedrock.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, unquote

import msgspec
from msgspec.structs import replace

from accordion.model.http import Outbound
from accordion.model.ports import Family
from accordion.protocols.base import Endpoint
from accordion.protocols.bedrock_frames import BedrockFrames, ConverseFrames, InvokeFrames, exception_name
from accordion.protocols.json_spans import fields_of, object_of
from accordion.protocols.json_values import encode, find_error_text
from accordion.protocols.message_keys import decode_json

SIGNATURE: Final = b"AWS4-HMAC-SHA256"
"""How the `authorization` header of a signed request begins."""

_CLOUDS: tuple[tuple[str, Family], ...] = (("/openai/", "azure"), ("/model/", "bedrock"))
"""Clouds by the beginnings of their paths."""
_VERTEX = re.compile(r"/v1(?:beta1)?/projects/[^/]+/locations/")
"""The beginning of Vertex AI's paths. OpenAI has projects too, without locations."""
_DEPLOYMENT = re.compile(r"(/openai/deployments/)([^/]+)(/chat/completions)")
_PARTNER_MODEL = re.compile(r"(/v1(?:beta1)?/projects/[^/]+/locations/[^/]+/publishers/anthropic/models/)([^/]+)")
_GOOGLE_MODEL = re.compile(r"(/v1(?:beta1)?/projects/.*/models/)([^/]+):(?:generateContent|streamGenerateContent)")
_METHODS = {"rawPredict": False, "streamRawPredict": True}
_COUNT = "count-tokens"
_INVOCATION = re.compile(r"(/model/)([^/]+)(/invoke)(-with-response-stream)?")
_CONVERSATION = re.compile(r"(/model/)([^/]+)(/converse)(-stream)?")
_ANSWERING = re.compile(r"/chat/completions$|/responses$|rawpredict$|/invoke|/converse")
_AZURE_PATHS = {
    "/openai/v1/chat/completions": "chat",
    "/openai/responses": "responses",
    "/openai/v1/responses": "responses",
    "/openai/v1/responses/input_tokens": "responses",
}
_VERSIONS: Mapping[Family, bytes] = {"vertex": b'"vertex-2023-10-16"', "bedrock": b'"bedrock-2023-05-31"'}
"""The field `anthropic_version` of a request for Claude, in place of the header."""


class CloudEndpoint(msgspec.Struct, frozen=True):
    """The protocol of a cloud's path, by name, and what the path says."""

    protocol: str
    endpoint: Endpoint


def find_cloud(path: str) -> Family | None:
    """Returns the cloud to which a path belongs."""
    for beginning, family in _CLOUDS:
        if path.startswith(beginning):
            return family
    return "vertex" if _VERTEX.match(path) else None


def find_cloud_endpoint(path: str) -> CloudEndpoint | None:
    """Returns the protocol that reads the requests of a cloud's path; None for all other paths."""
    if find_cloud(path) is None:
        return None
    if (protocol := _AZURE_PATHS.get(path)) is not None:
        return CloudEndpoint(protocol, Endpoint(is_token_count=path.endswith("/input_tokens")))
    if match := _DEPLOYMENT.fullmatch(path):
        return CloudEndpoint("chat", Endpoint(model=unquote(match[2])))
    if (match := _INVOCATION.fullmatch(path)) and "claude" in match[2]:
        return CloudEndpoint("messages", Endpoint(model=unquote(match[2]), is_stream=match[4] is not None))
    if match := _PARTNER_MODEL.fullmatch(path):
        model, _, method = unquote(match[2]).rpartition(":")
        if model == _COUNT:
            return CloudEndpoint("messages", Endpoint(is_token_count=True))
        if method in _METHODS:
            return CloudEndpoint("messages", Endpoint(model=model, is_stream=_METHODS[method]))
    return None


def is_cloud_path(path: str) -> bool:
    """Returns whether a path is that of requests to a cloud which a model answers, as the most lenient server reads it.
    `path` is in small letters, decoded, and without empty segments."""
    return find_cloud(path) is not None and _ANSWERING.search(path) is not None


def unread_reason(path: str, fields: Mapping[bytes, bytes]) -> str:
    """Returns why a request to a cloud is forwarded unread; empty if it is read, or is none of a model's. `fields` are
    the headers by name."""
    cloud = find_cloud(path)
    if cloud is None:
        return ""
    if fields.get(b"authorization", b"").startswith(SIGNATURE):
        return "it is signed, and the signature covers the body and the host; use a Bedrock API key (a bearer token)"
    if cloud == "bedrock" and "/invoke" in path and find_cloud_endpoint(path) is None:
        return "its format is the model's own; `invoke` is read for Claude's models, and `converse` for all"
    return ""


def open_frames(path: str) -> BedrockFrames | None:
    """Returns the frames in which a cloud streams its responses at a path; None where streams have no frames."""
    if (match := _CONVERSATION.fullmatch(path)) and match[4]:
        return ConverseFrames()
    match = _INVOCATION.fullmatch(path)
    return InvokeFrames() if match is not None and match[4] else None


def cloud_error(path: str, response: Outbound) -> Outbound:
    """Returns one of the proxy's own errors in the form that the clients of a path's cloud read.

    Bedrock's own clients read the name of the exception in a header and the text in the field `message`. The fields of
    the protocol stay beside it, for the SDK of the model's maker.
    """
    if find_cloud(path) != "bedrock" or not isinstance(response.body, bytes):
        return response
    fields = fields_of(response.body)
    body = object_of({"message": encode(find_error_text(decode_json(response.body))), **fields})
    exception = exception_name(response.status)
    headers = [(name, b"%d" % len(body) if name == b"content-length" else value) for name, value in response.headers]
    return replace(
        response, headers=(*headers, (b"x-amzn-errortype", (exception[0].upper() + exception[1:]).encode())), body=body
    )


def prompt_target(target: str, model: str) -> str:
    """Returns the target of one of the proxy's own requests to a cloud's model, which is not streamed.

    `target` is that of a request that the cloud's protocol reads.
    """
    path, question_mark, query = target.partition("?")
    name = quote(model, safe="@")
    if match := _PARTNER_MODEL.fullmatch(path):
        return f"{match[1]}{name}:rawPredict{question_mark}{query}"
    if match := _GOOGLE_MODEL.fullmatch(path):
        return f"{match[1]}{name}:generateContent"
    for pattern in (_DEPLOYMENT, _INVOCATION, _CONVERSATION):
        if match := pattern.fullmatch(path):
            return f"{match[1]}{name}{match[3]}{question_mark}{query}"
    return target


def cloud_prompt(family: Family, protocol: str, body: bytes) -> bytes:
    """Returns the body of one of the proxy's own requests in the form that a cloud accepts for a protocol, by name."""
    version = _VERSIONS.get(family) if protocol == "messages" else None
    if version is None:
        return body
    fields = {name: value for name, value in fields_of(body).items() if name not in ("model", "stream")}
    return object_of({"anthropic_version": version, **fields})

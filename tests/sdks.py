"""The official SDKs, with a provider that always gives the same answer in the place of the network."""

from __future__ import annotations

import anthropic
import httpx
import httpx2
import openai


def openai_sdk(status: int, content: bytes, kind: str) -> openai.OpenAI:
    """An OpenAI client whose every request is answered by `content` of the media type `kind`."""

    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(status, content=content, headers={"content-type": kind})

    http_client = httpx.Client(transport=httpx.MockTransport(answer))
    return openai.OpenAI(api_key="k", base_url="http://proxy/v1", max_retries=0, http_client=http_client)


def anthropic_sdk(status: int, content: bytes, kind: str) -> anthropic.Anthropic:
    """An Anthropic client whose every request is answered by `content` of the media type `kind`."""

    def answer(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(status, content=content, headers={"content-type": kind})

    http_client = httpx2.Client(transport=httpx2.MockTransport(answer))
    return anthropic.Anthropic(api_key="k", base_url="http://proxy", max_retries=0, http_client=http_client)

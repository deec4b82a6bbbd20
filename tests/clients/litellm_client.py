"""LiteLLM as a client of both protocols: prints what it saw as one line of JSON. Run as a process of its own."""

import json
import os
from typing import Any

import litellm

ASK = [{"role": "user", "content": "Hi from LiteLLM: ü 東京"}]
KEY = os.environ["TEST_KEY"]
OPENAI: dict[str, Any] = {
    "model": "openai/gpt-test",
    "api_base": os.environ["BASE_V1"],
    "api_key": KEY,
    "max_retries": 0,
}
CLAUDE: dict[str, Any] = {"model": "anthropic/claude-test", "api_base": os.environ["BASE_ORIGIN"], "api_key": KEY}
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Weather.", "parameters": PARAMETERS}}


def text(answer: Any) -> str:
    """The text of an answer."""
    return str(answer.choices[0].message.content)


def streamed(**options: Any) -> str:
    """The joined text of a streamed answer."""
    chunks = litellm.completion(messages=ASK, stream=True, **options)
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


def failed(**options: Any) -> str:
    """The class of the error that a call ends with."""
    try:
        litellm.completion(messages=[{"role": "user", "content": "FAIL"}], **options)
    except Exception as error:
        return type(error).__name__
    return "none"


def main() -> None:
    """Ask in every way, print what came back."""
    called = litellm.completion(messages=ASK, tools=[TOOL], **OPENAI).choices[0].message.tool_calls[0].function
    seen = {
        "openai": text(litellm.completion(messages=ASK, **OPENAI)),
        "openai_streamed": streamed(**OPENAI),
        "anthropic": text(litellm.completion(messages=ASK, **CLAUDE)),
        "anthropic_streamed": streamed(**CLAUDE),
        "tool": json.loads(called.arguments),
        "failed": failed(**OPENAI),
    }
    print(json.dumps(seen))


if __name__ == "__main__":
    main()

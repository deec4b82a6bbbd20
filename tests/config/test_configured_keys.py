"""Which configured keys are used: on which address the proxy listens, and where requests go."""

from __future__ import annotations

import pytest

from accordion.config import Settings
from accordion.config.checks import find_hints
from accordion.config.load import build

ANYWHERE = "server: {host: 0.0.0.0}\n"
KEYS = "proxy_keys: [{id: team, key: k}]\n"
WRITER = """
model_list:
- model_name: writer
  litellm_params: {model: openai/gpt-4o-mini, api_base: "http://writer.test/v1"}
summaries: {writer: writer}
"""
LISTED = """
upstreams: {openai: {api_key: key-of-openai}, anthropic: {api_key: key-of-anthropic}}
model_list:
- model_name: there
  litellm_params: {model: openai/gpt-5, api_base: "http://there.test/v1", api_key: key-there}
- model_name: at-openai
  litellm_params: {model: gpt-5, api_key: key-of-entry}
- model_name: at-anthropic
  litellm_params: {model: claude-sonnet-4-5, api_key: key-of-claude}
"""


def keys_of(settings: Settings) -> dict[str, str]:
    upstreams = {name: key.reveal() for name, (_, key) in settings.upstreams.by_family().items() if key}
    return upstreams | {model.model_name: model.litellm_params.api_key.reveal() for model in settings.model_list}


@pytest.mark.parametrize(("more", "is_called"), [("", True), (ANYWHERE + KEYS, True), (ANYWHERE, False)])
def test_a_writer_that_is_not_called_is_named_with_the_reason(more: str, is_called: bool) -> None:
    hints = [hint for hint in find_hints(build((more + WRITER).encode(), {}, {})) if "summaries" in hint]
    assert [hint.partition(":")[0] for hint in hints] == ([] if is_called else ["$.summaries.writer"])
    assert all("callers with a proxy key, and `proxy_keys` is empty" in hint for hint in hints)


def test_keys_do_not_go_to_an_address_of_the_command_line() -> None:
    settings = build(LISTED.encode(), {}, {"upstreams.openai.base_url": "http://of-the-agent.test/v1"})
    assert keys_of(settings) == {
        "anthropic": "key-of-anthropic", "there": "key-there", "at-openai": "", "at-anthropic": "key-of-claude"
    }  # fmt: skip


def test_keys_go_to_an_address_of_the_environment() -> None:
    settings = build(LISTED.encode(), {"ACCORDION_OPENAI_BASE_URL": "http://gateway.test/v1"}, {})
    assert keys_of(settings)["openai"] == "key-of-openai"
    assert keys_of(settings)["at-openai"] == "key-of-entry"

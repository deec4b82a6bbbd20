"""Tables made of settings."""

from __future__ import annotations

import pytest

from accordion.composition.tables import reaches_anthropic
from accordion.config.load import build


def listed(name: str) -> str:
    return f"model_list: [{{model_name: '{name}', litellm_params: {{model: openai/m, api_base: 'http://m/v1'}}}}]"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", True),
        (listed("gpt-5"), True),
        (listed("openai/*"), True),
        (listed("claude-opus-4-5"), False),
        (listed("claude-*"), False),
        (listed("cl*"), False),
        (listed("*"), False),
        ("upstreams: {anthropic: {base_url: 'https://gateway.example.com'}}", False),
        ("upstreams: {anthropic: {base_url: 'https://api.anthropic.com/'}}", True),
    ],
)
def test_requests_reach_anthropic_unless_a_setting_leads_them_elsewhere(text: str, expected: bool) -> None:
    assert reaches_anthropic(build(text.encode(), {}, {})) is expected

"""A LiteLLM proxy's config.yaml is taken as it is: what it says holds here, or is named as ignored."""

from __future__ import annotations

import pytest

from accordion.accounting.calibration import LearnedLimits
from accordion.composition.tables import build_windows, routes
from accordion.config import Settings, find_hints
from accordion.config.load import build

FILE = """
environment_variables: {MASTER: sk-1234, REDIS_HOST: localhost}
model_list:
  - model_name: gpt-4o
    litellm_params: {model: azure/gpt-4o-eu, api_base: 'https://eu', api_key: k, rpm: 6, tpm: 9, timeout: 300}
    model_info: {id: eu, mode: chat, input_cost_per_token: 0.1, max_tokens: 4096, supports_vision: true}
  - model_name: gpt-4o
    litellm_params: {model: openai/gpt-4o, api_key: k}
  - model_name: "anthropic/*"
    litellm_params: {model: "anthropic/*", api_key: a}
litellm_settings: {drop_params: true, request_timeout: 33, num_retries: 3, success_callback: [langfuse]}
router_settings: {routing_strategy: least-busy, model_group_alias: {gpt-4: gpt-4o}}
general_settings: {master_key: os.environ/MASTER, database_url: 'postgresql://x'}
"""


def read(text: str, **environ: str) -> Settings:
    return build(text.encode(), environ, {})


def test_a_litellm_file_is_taken_as_it_is() -> None:
    settings = read(FILE)
    assert settings.timeouts.read_seconds == 33
    assert settings.retries.connect_attempts == 4
    assert [(key.id, key.key.reveal()) for key in settings.proxy_keys] == [("litellm-master", "sk-1234")]
    made = routes(settings)
    assert [route.model for route in (made.models["gpt-4"], *made.models["gpt-4"].fallbacks)] == [
        "azure/gpt-4o-eu",
        "gpt-4o",
    ]
    assert dict(made.models["gpt-4o"].options)["drop_params"] is True


def test_an_ignored_setting_is_named_once() -> None:
    ignored = [each for each in find_hints(read(FILE)) if "ignored" in each]
    assert ignored == [
        "$.litellm_settings: ignored, as they mean nothing here: success_callback",
        "$.router_settings: ignored, as they mean nothing here: routing_strategy",
        "$.general_settings: ignored, as they mean nothing here: database_url",
    ]


def test_our_own_settings_in_the_file_hold() -> None:
    own = FILE + "timeouts: {read_seconds: 5}\nretries: {connect_attempts: 1}\n"
    settings = read(own, MASTER="sk-environment")
    assert (settings.timeouts.read_seconds, settings.retries.connect_attempts) == (5, 1)
    assert settings.proxy_keys[0].key.reveal() == "sk-environment"


def test_no_secret_of_a_litellm_section_is_shown() -> None:
    assert "sk-1234" not in repr(read(FILE))
    assert "postgresql" not in repr(read(FILE))


@pytest.mark.parametrize(
    ("name", "shape", "model", "asked"),
    [
        ("openai/*", "openai/*", "openai/gpt-5", "gpt-5"),
        ("*", "*", "anthropic/claude-x", "claude-x"),
        ("*", "openai/*", "local-model", None),
        ("mine/*/fast", "openai/*-mini", "mine/gpt/fast", "gpt-mini"),
    ],
)
def test_a_star_in_a_name_stands_for_any_text(name: str, shape: str, model: str, asked: str | None) -> None:
    text = f"model_list: [{{model_name: '{name}', litellm_params: {{model: '{shape}', api_key: k}}}}]"
    route = routes(read(text)).route("openai", model)
    assert (route.name, route.model, route.api_key) == (name, asked, "k")


def test_the_most_particular_name_wins() -> None:
    entries = ", ".join(
        f"{{model_name: '{name}', litellm_params: {{model: '{model}', api_key: '{key}'}}}}"
        for name, model, key in (
            ("*", "openai/*", "all"),
            ("gpt-*", "openai/gpt-*", "some"),
            ("gpt-5", "openai/gpt-5", "one"),
        )
    )
    made = routes(read(f"model_list: [{entries}]"))
    keys = [made.route("openai", name).api_key for name in ("gpt-5", "gpt-4o", "x")]
    assert keys == ["one", "some", "all"]


def test_a_name_that_no_provider_has_goes_to_the_default_upstream() -> None:
    made = routes(read("model_list: [{model_name: '*', litellm_params: {model: '*'}}]"))
    assert made.route("openai", "nosuch/model").name == "openai"


def test_an_entry_without_a_key_has_that_of_its_upstream() -> None:
    upstreams = "upstreams: {openai: {api_key: up}}\n"
    entry = "model_list: [{model_name: m, litellm_params: {model: openai/x%s}}]"
    assert routes(read(upstreams + entry % "")).models["m"].api_key == "up"
    assert routes(read(upstreams + entry % ", api_key: own")).models["m"].api_key == "own"
    elsewhere = routes(read(upstreams + entry % ", api_base: 'https://elsewhere/v1'")).models["m"]
    assert elsewhere.api_key == "", "a key is sent to no other host than its upstream's"


def test_the_window_of_several_deployments_is_the_smallest() -> None:
    listed = "{model_name: m, litellm_params: {model: openai/gpt-4o}}"
    stated = "{model_name: m, litellm_params: {model: openai/x}, model_info: {max_input_tokens: %d}}"
    for size, expected in ((50_000, 50_000), (500_000, 128_000)):
        both = [listed, stated % size]
        for entries in (both, both[::-1]):
            settings = read(f"model_list: [{', '.join(entries)}]")
            assert build_windows(settings, LearnedLimits(lambda: 0.0)).window("m").size == expected

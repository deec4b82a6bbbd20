"""What settings say of requests that go by translation: whose limits hold, and how long is waited."""

import pytest

from accordion.compaction.case import Budgets
from accordion.settings.load import build
from accordion.wiring.tables import routes, rules

MODELS = """
model_list:
  - {model_name: smart, litellm_params: {model: openai/gpt-5}}
  - {model_name: clever, litellm_params: {model: anthropic/claude-haiku-4-5}}
  - {model_name: cloudy, litellm_params: {model: bedrock/us.anthropic.claude-sonnet-4-5-v1:0}}
  - {model_name: vertex, litellm_params: {model: vertex_ai/claude-sonnet-4-5, timeout: 30}}
  - model_name: nameless
    litellm_params: {model: "bedrock/arn:aws:bedrock:x"}
    model_info: {base_model: claude-opus-4-1}
  - {model_name: nova, litellm_params: {model: bedrock/amazon.nova-pro-v1:0}}
  - {model_name: gem, litellm_params: {model: gemini/gemini-2.5-pro}}
budgets: {models: {gem: {max_images: 3}}}
timeouts: {connect_seconds: 4, read_seconds: 90}
"""


@pytest.mark.parametrize(
    ("model", "family", "budgets"),
    [
        ("clever", "litellm", Budgets(body=32_000_000, images=100)),
        ("clever", "anthropic", Budgets(body=32_000_000, images=100)),
        ("smart", "litellm", Budgets(body=512_000_000, images=1_500)),
        ("cloudy", "litellm", Budgets(body=20_000_000, images=100)),
        ("nameless", "litellm", Budgets(body=20_000_000, images=100)),
        ("vertex", "litellm", Budgets(body=30_000_000, images=100)),
        ("nova", "litellm", Budgets()),
        ("gem", "litellm", Budgets(images=3)),
        ("unheard-of", "litellm", Budgets()),
        ("unheard-of", "anthropic", Budgets(body=32_000_000, images=100)),
    ],
)
def test_the_limits_of_who_is_asked_in_truth_hold(model: str, family: str, budgets: Budgets) -> None:
    of = rules(build(MODELS.encode(), {}, {}))
    assert of(model, family, False, 200_000).budgets == budgets
    assert of(model, family, False, 200_000).budgets == budgets, "the second time too"


def test_a_translated_request_waits_as_long_as_any_other_unless_its_model_says_otherwise() -> None:
    made = routes(build(MODELS.encode(), {}, {})).models
    for name, route in made.items():
        options = dict(route.options)
        assert options["connect_timeout"] == 4
        assert options["timeout"] == (30 if name == "vertex" else 90)

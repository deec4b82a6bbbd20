"""What settings say of requests that go by translation: whose limits hold, and how long is waited."""

import pytest

from accordion.compaction.request import RequestBudgets
from accordion.composition.tables import routes, rules_by_model
from accordion.config.load import build

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
        ("clever", "litellm", RequestBudgets(max_body_bytes=32_000_000, max_images=100)),
        ("clever", "anthropic", RequestBudgets(max_body_bytes=32_000_000, max_images=100)),
        ("smart", "litellm", RequestBudgets(max_body_bytes=512_000_000, max_images=1_500)),
        ("cloudy", "litellm", RequestBudgets(max_body_bytes=20_000_000, max_images=100)),
        ("nameless", "litellm", RequestBudgets(max_body_bytes=20_000_000, max_images=100)),
        ("vertex", "litellm", RequestBudgets(max_body_bytes=30_000_000, max_images=100)),
        ("nova", "litellm", RequestBudgets()),
        ("gem", "litellm", RequestBudgets(max_images=3)),
        ("unheard-of", "litellm", RequestBudgets()),
        ("unheard-of", "anthropic", RequestBudgets(max_body_bytes=32_000_000, max_images=100)),
    ],
)
def test_the_limits_of_who_is_asked_in_truth_hold(model: str, family: str, budgets: RequestBudgets) -> None:
    of = rules_by_model(build(MODELS.encode(), {}, {}))
    assert of(model, family, False, 200_000).budgets == budgets
    assert of(model, family, False, 200_000).budgets == budgets, "the second time too"


def test_a_translated_request_has_the_general_time_limit_unless_its_model_has_one() -> None:
    made = routes(build(MODELS.encode(), {}, {})).models
    for name, route in made.items():
        options = dict(route.options)
        assert options["connect_timeout"] == 4
        assert options["timeout"] == (30 if name == "vertex" else 90)

"""Which thresholds hold for whom, and which contradict each other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.config import Settings, find_hints
from accordion.config.load import build
from accordion.model.budget import Thresholds
from accordion.model.errors import ConfigError


def read(text: str) -> Settings:
    return build(text.encode(), {}, {})


def test_the_defaults_are_those_of_the_core():
    assert (
        read("").thresholds.thresholds_for("any")
        == read("").thresholds.thresholds_for("any", delegated=True)
        == Thresholds()
    )


def test_thresholds_of_a_model_precede_those_of_sub_agents_and_the_general_ones():
    thresholds = read(
        """
        thresholds:
          conversation: 0.51
          generation: 0.71
          hard: 0.81
          reserved_output: 1
          delegated: {conversation: 0.52, generation: 0.72, hard: 0.82, reserved_output: 2}
          models:
            m: {conversation: 0.53, generation: 0.73, delegated: {conversation: 0.54}}
        """
    ).thresholds
    figures = {
        (name, delegated): (found.conversation, found.generation, found.hard, found.reserved_output)
        for name in ("m", "other")
        for delegated in (False, True)
        for found in [thresholds.thresholds_for(name, delegated=delegated)]
    }
    assert figures == {
        ("other", False): (0.51, 0.71, 0.81, 1),
        ("other", True): (0.52, 0.72, 0.82, 2),
        ("m", False): (0.53, 0.73, 0.81, 1),
        ("m", True): (0.54, 0.73, 0.82, 2),
    }


@pytest.mark.parametrize(
    ("text", "conversation", "generation"),
    [
        ("conversation: 0.9, hard: 0.95", 0.25, 0.25),
        ("conversation: 0.3, generation: 0.4", 0.15, 0.2),
        ("conversation: 0.0, generation: 0.0", 0.0, 0.0),
        ("conversation: 1.0, generation: 1.0", 0.25, 0.25),
        ("conversation: 0.2, hard: 0.3", 0.1, 0.1),
        ("conversation_target: 0.5, generation_target: 0.7", 0.5, 0.7),
    ],
)
def test_a_target_that_nobody_states_is_a_quarter_or_half_of_a_lower_trigger(text, conversation, generation):
    found = read(f"thresholds: {{{text}}}").thresholds.thresholds_for("any")
    assert found.conversation_target == pytest.approx(conversation, abs=1e-4)
    assert found.generation_target == pytest.approx(generation, abs=1e-4)


@pytest.mark.parametrize(
    ("text", "path", "words"),
    [
        ("conversation: 0.2, conversation_target: 0.3", "$.thresholds.conversation_target", "at least `conversation_t"),
        ("conversation: 0.0, conversation_target: 0.1", "$.thresholds.conversation_target", "`conversation` (the trig"),
        ("generation: 0.5, generation_target: 0.6", "$.thresholds.generation_target", "`generation` (the trigger)"),
        ("generation_target: 0.8", "$.thresholds.generation_target", "(with a window below 100,000 tokens)"),
        ("conversation_target: 0.3, models: {m: {conversation: 0.29}}", "$.thresholds.models.m.conversation", "target"),
        ("soft: 0.6", "$.thresholds.soft", "at most `conversation`"),
        ("conversation: 1.0, soft: 0.9, hard: 0.95", "$.thresholds.soft", "at most `generation`"),
        ("conversation: 0.05", "$.thresholds.soft", "at most `conversation`"),
        ("models: {m: {delegated: {soft: 0.9}}}", "$.thresholds.models.m.delegated.soft", "at most `conversation`"),
        ("hard: 0.4", "$.thresholds.hard", "at least `conversation`"),
        ("conversation: 0.96", "$.thresholds.conversation", "`hard` must be at least `conversation`"),
        ("generation: 0.96", "$.thresholds.generation", "`hard` must be at least `generation`"),
        ("generation: 0.8, models: {m: {hard: 0.7}}", "$.thresholds.models.m.hard", "at least `generation`"),
        (
            "hard: 0.8, models: {m-1.5: {generation: 0.9}}",
            '$.thresholds.models["m-1.5"].generation',
            "at least `generation`",
        ),
        ("hard: 0.8, delegated: {generation: 0.9}", "$.thresholds.delegated.generation", "at least `generation`"),
        (
            "delegated: {generation: 0.8}, models: {m: {hard: 0.7}}",
            "$.thresholds.models.m.hard",
            "at least `generation`",
        ),
        ("delegated: {hard: 2}", "$.thresholds.delegated.hard", "did you mean 0.02 or 2%?"),
        ("models: {a: {}, m: {delegated: {hrad: 1}}}", "$.thresholds.models.m.delegated.hrad", "did you mean `hard`"),
        ("reserved_output: -1", "$.thresholds.reserved_output", ">= 0"),
        ("reserved_output: 0.5", "$.thresholds.reserved_output", "whole number"),
        ("output_factor: -1", "$.thresholds.output_factor", ">= 0"),
        ("delegated: {output_factor: 0.5}", "$.thresholds.delegated.output_factor", "0 or at least 1"),
    ],
)
def test_a_contradiction_names_the_key_that_was_written_and_the_rule(text, path, words):
    with pytest.raises(ConfigError) as caught:
        read(f"thresholds: {{{text}}}")
    assert caught.value.path == path
    assert words in caught.value.message


def test_a_contradiction_that_no_window_escapes_names_no_window():
    with pytest.raises(ConfigError) as caught:
        read("thresholds: {conversation: 0.2, conversation_target: 0.3}")
    assert "window" not in caught.value.message


def test_a_trigger_for_large_windows_may_be_above_the_limit_of_small_ones():
    limits = read("thresholds: {generation: 0.89}").thresholds.thresholds_for("any").limits(200_000)
    assert (limits.generation, limits.hard) == (178_000, 180_000)


SMALL = "model_list: [{model_name: small, litellm_params: {model: openai/gpt-3.5-turbo}}]\n"
"""LiteLLM's table knows its window: 16,385 tokens, so that its hard limit is 0.85 of them."""
CONFIGURED = "model_list: [{model_name: small, litellm_params: {model: x}, model_info: {max_input_tokens: 16000}}]\n"


@pytest.mark.parametrize("models", [SMALL, CONFIGURED])
@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("models: {small: {conversation: 0.9}}", "$.thresholds.models.small.conversation"),
        ("models: {small: {generation: 0.9}}", "$.thresholds.models.small.generation"),
        ("models: {small: {delegated: {generation: 0.9}}}", "$.thresholds.models.small.delegated.generation"),
    ],
)
def test_a_models_own_trigger_above_the_limit_of_its_own_window_is_refused(models: str, text: str, path: str):
    with pytest.raises(ConfigError) as caught:
        read(models + f"thresholds: {{{text}}}")
    assert caught.value.path == path
    assert "expected at most 0.85, the hard limit of `small`" in caught.value.message


@pytest.mark.parametrize(
    "text",
    [
        "models: {small: {conversation: 0.85, generation: 0.85}}",
        "models: {small: {conversation: 0.9, hard: 0.9}}",
        "models: {small: {conversation: 1.0}}",
        "models: {gpt-4.1: {conversation: 0.9}}",
    ],
)
def test_a_trigger_at_its_limit_or_of_an_unknown_model_gives_no_warning(text: str):
    assert find_hints(read(SMALL + f"thresholds: {{{text}}}")) == ()


def test_a_trigger_for_all_models_above_the_limit_of_a_small_one_is_said():
    """Large models may have it; the small one is compacted at its limit all the same."""
    (hint,) = find_hints(read(SMALL + "thresholds: {conversation: 0.9}"))
    assert hint.startswith(
        "$.thresholds.conversation: `small` is compacted at its hard limit instead, 0.85 of its window"
    )
    own = "models: {small: {conversation: 0.6}}"
    assert find_hints(read(SMALL + f"thresholds: {{conversation: 0.9, {own}}}")) == ()
    (hint,) = find_hints(read(SMALL + "thresholds: {delegated: {generation: 0.9}}"))
    assert hint.startswith("$.thresholds.delegated.generation: ")


def test_room_for_the_answer_that_fills_a_configured_window_is_refused():
    model = "model_list: [{model_name: m, litellm_params: {model: x}, model_info: {max_input_tokens: 1000}}]\n"
    assert read(model + "thresholds: {reserved_output: 999}").thresholds.thresholds_for("m").reserved_output == 999
    with pytest.raises(ConfigError) as caught:
        read(model + "thresholds: {models: {m: {delegated: {reserved_output: 1000}}}}")
    assert caught.value.path == "$.thresholds.models.m.delegated.reserved_output"


shares = st.dictionaries(
    st.sampled_from(["conversation", "conversation_target", "generation", "generation_target", "hard", "soft"]),
    st.sampled_from([0.0, 0.05, 0.1, 0.2, 0.25, 0.4, 0.5, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0]),
    max_size=4,
)


@given(shares, shares, shares, shares, st.integers(1, 2_000_000))
def test_what_is_accepted_is_in_order_at_every_size_for_everyone(everyone, agents, model, both, size):
    tree = {**everyone, "delegated": agents, "models": {"m": {**model, "delegated": both}}}
    try:
        thresholds = read(f"thresholds: {tree}").thresholds
    except ConfigError:
        return
    for name in ("m", "other"):
        for delegated in (False, True):
            limits = thresholds.thresholds_for(name, delegated=delegated).limits(size)
            for kind in {"conversation", "generation"} - set(limits.never):
                trigger = getattr(limits, kind)
                # Each figure is floored by itself, so one token is no contradiction.
                assert getattr(limits, f"{kind}_target") <= trigger + 1
                assert trigger <= max(limits.hard + 1, 0.95 * size)
                assert trigger == 0 or limits.soft <= trigger + 1

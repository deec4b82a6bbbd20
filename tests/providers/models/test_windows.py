import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from accordion.accounting.calibration import LearnedLimits
from accordion.model.budget import Thresholds, Window
from accordion.model.errors import ConfigError
from accordion.providers.models.model_table import LimitPair, ModelTable, candidate_names
from accordion.providers.models.windows import DEFAULT_WINDOW, LONG_CONTEXT_BETA, ModelWindows, make_window

TABLE = ModelTable()


class Time:
    """A clock that moves when it is told."""

    def __init__(self) -> None:
        self.seconds = 1_000.0

    def __call__(self) -> float:
        return self.seconds


def windows(limits: LearnedLimits | None = None, **options: object) -> ModelWindows:
    return ModelWindows(limits or LearnedLimits(Time()), table=TABLE, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("model", "size", "usable"),
    [
        ("gpt-5.2", 400_000, 272_000),
        ("gpt-5.1", 400_000, 272_000),
        ("gpt-5", 400_000, 272_000),
        ("gpt-5.1-codex", 400_000, 272_000),
        ("gpt-5.1-codex-mini", 400_000, 272_000),
        ("gpt-5-pro", 400_000, 272_000),
        ("gpt-5.4", 1_050_000, 922_000),
        ("gpt-5.5", 1_050_000, 922_000),
        ("gpt-5.6", 1_050_000, 922_000),
        ("gpt-6-sol", 1_050_000, 922_000),
        ("gpt-4o", 128_000, 111_616),
        ("azure/gpt-5.1-chat", 128_000, 111_616),
        ("gpt-4.1", 1_047_576, 1_014_808),
        ("gpt-4", 8_192, 8_192),
        ("gpt-3.5-turbo", 16_385, 12_289),
        ("o3", 200_000, 200_000),
        ("claude-sonnet-4-5", 200_000, 200_000),
        ("claude-haiku-4-5", 200_000, 200_000),
        ("claude-opus-4-6", 1_000_000, 1_000_000),
        ("vertex_ai/gemini-3-pro-preview", 1_048_576, 1_048_576),
        ("gemini/gemini-2.5-pro", 1_048_576, 1_048_576),
        ("deepseek/deepseek-chat", 131_072, 122_880),
        ("mistral/mistral-large-latest", 262_144, 262_144),
    ],
)
def test_whole_window_and_usable_input_are_worked_out_of_either_figure(model: str, size: int, usable: int) -> None:
    window = windows().window(model)
    assert (window.size, window.usable_input, window.source, window.is_known) == (size, usable, "table", True)


def test_the_rule_holds_over_the_whole_table() -> None:
    assert len(TABLE.rows()) > 2_000
    for model in TABLE.rows():
        window = windows().window(model)
        assert window.source == "table", model
        assert 0 < window.usable_input <= window.size, model
        assert window.usable_input * 3 >= window.size * 2 - 3, model
        assert window.size >= TABLE.rows()[model][0], model
        assert window.max_output == TABLE.rows()[model][1], model


def test_every_figure_that_openai_limits_inputs_by_is_told_from_a_whole_window() -> None:
    sizes = {
        windows().window(model).size
        for model, (limit, output) in TABLE.rows().items()
        if "/gpt-5" in f"/{model}" and "/" not in model and output == 128_000 and limit > 200_000
    }
    assert sizes == {400_000, 1_050_000}


@pytest.mark.parametrize(
    ("given", "same_as"),
    [
        ("claude-sonnet-4-5-20250929", "claude-sonnet-4-5"),
        ("claude-sonnet-4-5@20250929", "claude-sonnet-4-5"),
        ("claude-sonnet-4.5", "claude-sonnet-4-5"),
        ("anthropic/claude-sonnet-4.5", "claude-sonnet-4-5"),
        ("openrouter/anthropic/claude-sonnet-4.5:free", "claude-sonnet-4-5"),
        ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", "claude-sonnet-4-5"),
        ("claude-sonnet-4-5-20991231", "claude-sonnet-4-5"),
        ("claude-opus-4-6[1m]", "claude-opus-4-6"),
        ("openai/gpt-5.2", "gpt-5.2"),
        ("gpt-5.2-2025-12-11", "gpt-5.2"),
        ("gpt-5.2-2099-01-31", "gpt-5.2"),
        ("openrouter/openai/gpt-5.2:thinking", "gpt-5.2"),
        ("GPT-4o", "gpt-4o"),
        ("ft:gpt-4o:org::id", "gpt-4o"),
        ("ft:gpt-4.1-2025-04-14:org:name:id", "gpt-4.1"),
        ("o4-mini-high", "o4-mini"),
        ("gemini-3-pro-preview", "vertex_ai/gemini-3-pro-preview"),
        ("gemini-3-pro", "vertex_ai/gemini-3-pro-preview"),
        ("google/gemini-3-pro-preview", "vertex_ai/gemini-3-pro-preview"),
        ("models/gemini-2.5-flash", "gemini-2.5-flash"),
        ("deepseek-chat", "deepseek/deepseek-chat"),
        ("mistral-large-latest", "mistral/mistral-large-latest"),
    ],
)
def test_dated_aliased_and_prefixed_ids_lead_to_the_same_window(given: str, same_as: str) -> None:
    assert windows().window(given) == windows().window(same_as)


@pytest.mark.parametrize("model", ["", "gpt-4-unheard-of", "claude-next-9", "gpt", "my-model", "/", "x" * 5_000])
def test_an_unknown_model_gets_the_default_flagged_as_unknown(model: str) -> None:
    window = windows().window(model)
    assert window == Window(DEFAULT_WINDOW, DEFAULT_WINDOW, "default")
    assert not window.is_known
    assert windows(default=64_000).window(model).size == 64_000


@given(st.text())
def test_any_id_gets_a_window(model: str) -> None:
    window = windows().window(model)
    assert 0 < window.usable_input <= window.size


def test_a_name_is_never_taken_for_a_longer_or_a_shorter_one() -> None:
    assert list(candidate_names("gpt-4o-mini-2024-07-18")) == ["gpt-4o-mini-2024-07-18", "gpt-4o-mini"]
    assert windows().window("gpt-4o-mini-2099-07-18").max_output == windows().window("gpt-4o-mini").max_output
    assert list(candidate_names("deepseek-v3")) == ["deepseek-v3"]


@pytest.mark.parametrize(
    ("model", "hard", "trigger"),
    [
        ("claude-sonnet-4-5", 180_000, 166_000),
        ("gpt-5.2", 360_000, 332_000),
        ("gemini-3-pro-preview", 996_147, 954_204),
    ],
)
def test_worked_thresholds_follow_from_the_windows(model: str, hard: int, trigger: int) -> None:
    limits = Thresholds().limits(windows().window(model).size)
    assert (limits.hard, limits.generation) == (hard, trigger)


def test_config_goes_before_everything_and_is_taken_literally() -> None:
    config = {"gpt-5.2": {"max_input_tokens": 50_000}, "local": {"max_input_tokens": 8e3, "max_output_tokens": 1_000}}
    known = windows(overrides=config)
    known.learn("gpt-5.2", "up", "", "tenant", 30_000)
    assert known.window("gpt-5.2", "up", "", "tenant") == Window(50_000, 50_000, "config")
    assert known.window("local") == Window(8_000, 8_000, "config", 1_000)


@pytest.mark.parametrize("model", ["openai/gpt-5.2", "gpt-5.2-2025-12-11", "openrouter/openai/gpt-5.2:free"])
def test_config_for_a_name_holds_for_its_other_forms(model: str) -> None:
    assert windows(overrides={"gpt-5.2": {"max_input_tokens": 50_000}}).window(model).source == "config"


def test_config_for_a_dated_id_leaves_the_others_alone() -> None:
    known = windows(overrides={"gpt-5.2-2025-12-11": {"max_input_tokens": 50_000}})
    assert known.window("gpt-5.2").source == "table"


def test_config_for_one_provider_leaves_the_others_alone() -> None:
    known = windows(overrides={"azure/gpt-5.2": {"max_input_tokens": 50_000}})
    assert known.window("azure/gpt-5.2").source == "config"
    assert known.window("gpt-5.2").source == "table"


@pytest.mark.parametrize("value", [0, -1, 0.5, "200000", None, True, float("nan"), float("inf"), [1]])
def test_a_window_in_the_config_that_is_no_number_above_0_is_an_error_with_its_path(value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        windows(overrides={"m": {"max_input_tokens": value}})
    assert caught.value.path == "$.model_list[?(@.model_name=='m')].model_info.max_input_tokens"


def test_a_wrong_output_limit_in_the_config_is_an_error_too() -> None:
    with pytest.raises(ConfigError, match="max_output_tokens"):
        windows(overrides={"m": {"max_input_tokens": 1_000, "max_output_tokens": 0}})


@pytest.mark.parametrize("limit", [32_768, 500_000])
def test_a_learnt_limit_replaces_the_table_whether_smaller_or_larger(limit: int) -> None:
    known = windows()
    known.learn("claude-sonnet-4-5", "gateway", "", "t", limit)
    assert known.window("claude-sonnet-4-5", "gateway", "", "t") == Window(limit, limit, "learnt", 64_000)


def test_a_learnt_limit_of_an_unknown_model_makes_it_known() -> None:
    known = windows()
    known.learn("local", "", "", "", 4_096)
    assert known.window("local") == Window(4_096, 4_096, "learnt")


def test_the_input_limit_that_was_known_leaves_the_window_as_it_was() -> None:
    known = windows()
    known.learn("gpt-5.2", "", "", "", 272_000)
    window = known.window("gpt-5.2")
    assert (window.size, window.usable_input, window.source) == (400_000, 272_000, "learnt")


def test_a_learnt_limit_holds_only_where_it_was_learnt() -> None:
    known = windows()
    known.learn("claude-sonnet-4-5", "a", "", "t", 50_000)
    for place in [
        ("claude-sonnet-4-5", "b", "", "t"),
        ("claude-sonnet-4-5", "a", LONG_CONTEXT_BETA, "t"),
        ("claude-sonnet-4-5", "a", "", "other"),
        ("claude-haiku-4-5", "a", "", "t"),
    ]:
        assert known.window(*place).source == "table", place


def test_betas_that_do_not_change_the_window_do_not_split_what_was_learnt() -> None:
    known = windows()
    known.learn("claude-sonnet-4-5", "a", "context-management-2025-06-27", "t", 50_000)
    assert known.window("claude-sonnet-4-5", "a", "other-beta", "t").size == 50_000


def test_a_learnt_limit_expires() -> None:
    time = Time()
    known = windows(LearnedLimits(time), learnt_for=60.0)
    known.learn("gpt-4o", "", "", "", 64_000)
    time.seconds += 59
    assert known.window("gpt-4o").source == "learnt"
    time.seconds += 1
    assert known.window("gpt-4o").source == "table"


def test_other_settings_do_not_forget_what_was_learnt() -> None:
    limits = LearnedLimits(Time())
    windows(limits).learn("gpt-4o", "", "", "", 64_000)
    assert windows(limits, default=9_000).window("gpt-4o").source == "learnt"


@pytest.mark.parametrize("limit", [0, -5])
def test_a_limit_that_is_none_is_not_learnt(limit: int) -> None:
    known = windows()
    known.learn("gpt-4o", "", "", "", limit)
    assert known.window("gpt-4o").source == "table"


@pytest.mark.parametrize("model", ["claude-sonnet-4-5", "claude-sonnet-4-20250514", "anthropic/claude-sonnet-4.5"])
def test_the_long_context_beta_gives_a_million_to_the_models_that_take_it(model: str) -> None:
    betas = f"context-management-2025-06-27,{LONG_CONTEXT_BETA}"
    assert windows().window(model, beta=betas).size == 1_000_000
    assert windows().window(model).size == 200_000
    assert windows().window(f"{model}[1m]").size == 1_000_000


@pytest.mark.parametrize("model", ["claude-haiku-4-5", "claude-opus-4-5", "gpt-4o"])
def test_the_long_context_beta_changes_nothing_for_other_models(model: str) -> None:
    assert windows().window(model, beta=LONG_CONTEXT_BETA) == windows().window(model)


def test_remembered_windows_are_bounded_and_stay_right() -> None:
    known = windows()
    for number in range(5_000):
        known.window(f"model-{number}")
    assert len(known._windows) <= 1_024
    assert known.window("gpt-4o").size == 128_000


class SmallTable(ModelTable):
    """A table of our own, in place of LiteLLM's."""

    def __init__(self, rows: dict[str, LimitPair]) -> None:
        super().__init__()
        self._rows = rows


def test_of_several_entries_for_one_name_the_makers_own_wins_then_the_most_common() -> None:
    rows = {
        "host_a/acme/m-1": (10_000, 0),
        "host_b/m-1": (20_000, 0),
        "host_c/m-1": (20_000, 0),
        "host_d/n-1": (30_000, 0),
        "mistral/n-1": (40_000, 0),
        "azure/n-1": (50_000, 0),
    }
    found = SmallTable(rows)
    assert found.find("m-1") == (20_000, 0)
    assert found.find("n-1") == (40_000, 0)
    assert found.find("host_a/acme/m-1") == (10_000, 0)


def test_the_table_is_kept_compact() -> None:
    figures = {id(value) for value in TABLE.rows().values()}
    assert len(figures) == len(set(TABLE.rows().values())) < len(TABLE.rows()) / 4


def test_no_output_limit_takes_more_than_a_third_of_a_shared_window() -> None:
    assert make_window("m", 9_000, 3_000).usable_input == 6_000
    assert make_window("m", 9_000, 3_001).usable_input == 9_000


@pytest.mark.parametrize("overrides", [{}, {"gpt-5.2": {"max_input_tokens": 50_000}}])
def test_that_a_provider_counts_requested_output_is_learnt_for_every_window(
    overrides: dict[str, dict[str, object]],
) -> None:
    known = windows(overrides=overrides)
    before = known.window("gpt-5.2", "up", "", "t")
    known.learn("gpt-5.2", "up", "", "t", 0, counts_output=True)
    assert known.window("gpt-5.2", "up", "", "t") == structs.replace(before, counts_output=True)
    assert known.window("gpt-5.2", "up", "", "other") == before


def test_a_listed_window_counts_for_its_tenant_and_upstream_alone() -> None:
    known = windows(default=9_000)
    known.learn_listed("gpt-4o", "gateway", "t", 32_000)
    window = known.window("gpt-4o", "gateway", "", "t")
    assert (window.size, window.source) == (32_000, "listed")
    assert known.window("gpt-4o", "gateway", "", "other").source == "table"
    assert known.window("gpt-4o", "openai", "", "t").source == "table"


def test_the_smaller_of_a_listed_and_a_learned_limit_counts() -> None:
    known = windows()
    known.learn_listed("local", "gateway", "t", 32_000)
    known.learn("local", "gateway", "", "t", 64_000)
    assert known.window("local", "gateway", "", "t").source == "listed"
    known.learn("local", "gateway", "", "t", 16_000)
    window = known.window("local", "gateway", "", "t")
    assert (window.size, window.source) == (16_000, "learnt")


def test_a_listed_window_changes_no_configured_one_and_nothing_that_the_table_says() -> None:
    known = windows(overrides={"mine": {"max_input_tokens": 5_000}})
    known.learn_listed("mine", "gateway", "t", 32_000)
    known.learn_listed("gpt-5.2", "gateway", "t", 272_000)
    assert known.window("mine", "gateway", "", "t").source == "config"
    assert known.window("gpt-5.2", "gateway", "", "t").source == "table"


@pytest.mark.parametrize(
    ("model", "nearest"),
    [
        ("gpt-5.99", "gpt-5.6"),
        ("openai/gpt-5.99-codex", "gpt-5.3-codex"),
        ("claude-opus-99", "claude-opus-4-8"),
        ("o9-mini", "o4-mini"),
    ],
)
def test_an_unknown_version_has_the_window_of_the_nearest_one(model: str, nearest: str) -> None:
    window = windows().window(model)
    assert (window.source, window.is_known) == ("family", False)
    assert window.size == windows().window(nearest).size


@pytest.mark.parametrize("model", ["llama-99-70b-instruct", "my-model-2", "7b", "2", "gpt-x"])
def test_a_model_without_a_family_has_the_default_window(model: str) -> None:
    assert windows().window(model).source == "default"

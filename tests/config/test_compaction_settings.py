"""What is said of compacting beside thresholds: modes, pipelines, writers, budgets, the spool."""

import msgspec
import pytest

from accordion.compaction.request import RequestBudgets
from accordion.compaction.strategies import STRATEGIES
from accordion.config import Settings, find_hints
from accordion.config.load import build
from accordion.model.errors import ConfigError


def read(text: str) -> Settings:
    return build(text.encode(), {}, {})


def refused(text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        read(text)
    return caught.value


@pytest.mark.parametrize("word", ["auto", "observe", "off", "'off'"])
def test_a_mode_is_taken_as_it_is_written_with_quotes_or_without(word):
    assert read(f"compaction: {{mode: {word}}}").compaction.mode_of("any") == word.strip("'")


def test_a_models_own_mode_and_pipeline_go_before_those_of_all():
    compaction = read(
        "compaction: {mode: observe, pipeline: [superseded],"
        " models: {a: {mode: off}, b: {pipeline: [stale_reasoning]}}}"
    ).compaction
    names = {model: [entry.name for entry in compaction.pipeline_of(model)] for model in ("a", "b", "c")}
    assert names == {"a": ["superseded"], "b": ["stale_reasoning"], "c": ["superseded"]}
    assert [compaction.mode_of(model) for model in ("a", "b", "c")] == ["off", "observe", "observe"]


def test_sub_agents_may_have_a_mode_and_a_pipeline_of_their_own():
    compaction = read(
        "compaction: {mode: observe, pipeline: [superseded], delegated: {pipeline: [summarize]}, models: {"
        "a: {mode: off, delegated: {mode: auto, pipeline: [images]}}, b: {pipeline: [stale_reasoning]}}}"
    ).compaction
    of = {
        (model, delegated): [entry.name for entry in compaction.pipeline_of(model, delegated=delegated)]
        for model in "abc"
        for delegated in (False, True)
    }
    assert of == {
        ("a", False): ["superseded"], ("a", True): ["images"],
        # What is said of a model goes before what is said of sub-agents, as with thresholds.
        ("b", False): ["stale_reasoning"], ("b", True): ["stale_reasoning"],
        ("c", False): ["superseded"], ("c", True): ["summarize"],
    }  # fmt: skip
    assert [compaction.mode_of(model, delegated=True) for model in "abc"] == ["auto", "observe", "observe"]
    assert compaction.mode_of("a") == "off"


def test_a_strategy_may_stand_by_its_name_or_with_options():
    text = "compaction: {pipeline: [fixed_limits, {fixed_limits: {messages: '9'}}, {fixed_limits: {}}]}"
    kind = STRATEGIES["fixed_limits"].options_type
    pipeline = read(text).compaction.pipeline_of("any")
    assert {entry.name for entry in pipeline} == {"fixed_limits"}
    assert [entry.options for entry in pipeline] == [kind(), kind(messages=9), kind()]


@pytest.mark.parametrize("name", list(STRATEGIES))
def test_every_strategy_can_be_named(name):
    (entry,) = read(f"compaction: {{pipeline: [{name}]}}").compaction.pipeline_of("any")
    assert (entry.strategy_type, entry.options) == (STRATEGIES[name], STRATEGIES[name].options_type())


@pytest.mark.parametrize("word", ["reference", "drop", "[{tool_name} {call_id}]", "string:capwords"])
def test_a_replacement_may_be_a_word_a_template_or_a_function(word):
    text = f"compaction: {{pipeline: [{{compact_tool_results: {{replacement: '{word}'}}}}]}}"
    (entry,) = read(text).compaction.pipeline_of("any")
    assert entry.options == STRATEGIES["compact_tool_results"].options_type(replacement=word)


@pytest.mark.parametrize(
    ("text", "path", "words"),
    [
        ("mode: maybe", "$.compaction.mode", "expected one of auto, observe, off"),
        ("mode: on", "$.compaction.mode", "expected one of auto, observe, off"),
        ("models: {a: {}, b.c: {mode: 3}}", '$.compaction.models["b.c"].mode', "expected one of"),
        ("models: {b: {pipelin: []}}", "$.compaction.models.b.pipelin", "did you mean `pipeline`"),
        ("delegated: {pipeline: [sumarize]}", "$.compaction.delegated.pipeline[0]", "did you mean `summarize`"),
        ("delegated: {pipelin: []}", "$.compaction.delegated.pipelin", "did you mean `pipeline`"),
        ("models: {b.c: {delegated: {pipeline: []}}}", '$.compaction.models["b.c"].delegated.pipeline', "`mode: off`"),
        ("pipeline: summarize", "$.compaction.pipeline", "expected a list"),
        ("pipeline: []", "$.compaction.pipeline", "`mode: off`"),
        ("pipeline: !!set {summarize}", "$.compaction.pipeline", "expected a list"),
        ("pipeline: [sumarize]", "$.compaction.pipeline[0]", "did you mean `summarize`"),
        ("pipeline: [summarize, {zip: {}}]", "$.compaction.pipeline[1].zip", "the strategies are "),
        ("pipeline: [summarize, 5]", "$.compaction.pipeline[1]", "expected the name of a strategy"),
        ("pipeline: [{summarize: }]", "$.compaction.pipeline[0]", "or a name with a mapping"),
        ("pipeline: [{summarize: {}, superseded: {}}]", "$.compaction.pipeline[0]", "expected the name of a strategy"),
        ("pipeline: [{summarize: 500}]", "$.compaction.pipeline[0].summarize", "mapping of options"),
        ("pipeline: [{summarize: {keep_last: 2}}]", "$.compaction.pipeline[0].summarize.keep_last", "`keep_last_n`"),
        ("pipeline: [{summarize: {keep_last_n: x}}]", "$.compaction.pipeline[0].summarize.keep_last_n", "got text"),
        ("pipeline: [{keep_last_n_turns: {n: 0}}]", "$.compaction.pipeline[0].keep_last_n_turns.n", ">= 1"),
        ("models: {b.c: {pipeline: [{fixed_limits: {tokens: 0}}]}}",
         '$.compaction.models["b.c"].pipeline[0].fixed_limits.tokens', ">="),
        ("pipeline: [{compact_tool_results: {keep_last_n: 1, replacement: '[{tool}]'}}]",
         "$.compaction.pipeline[0].compact_tool_results.replacement", "unknown placeholder {tool}; there are {tool_n"),
        ("pipeline: [{compact_tool_results: {replacement: '{'}}]",
         "$.compaction.pipeline[0].compact_tool_results.replacement", "the template is wrong"),
        ("pipeline: [{compact_tool_results: {replacement: 'no.such.module:function'}}]",
         "$.compaction.pipeline[0].compact_tool_results.replacement", "cannot be imported"),
        ("pipeline: [{compact_tool_results: {replacement: 'string:digits'}}]",
         "$.compaction.pipeline[0].compact_tool_results.replacement", "is not a function"),
        ("pinned_tools: load", "$.compaction.pinned_tools", "expected list"),
        ("pinned_tools: ['']", "$.compaction.pinned_tools[0]", "length >= 1"),
    ],
)  # fmt: skip
def test_an_error_names_the_path_of_the_key_and_what_is_expected(text, path, words):
    error = refused(f"compaction: {{{text}}}")
    assert error.path == path
    assert words in error.message


def test_the_writer_is_the_requests_own_model_unless_another_is_named():
    assert read("").summaries.model == read("summaries: {writer: extractive}").summaries.model == ""
    assert read("summaries: {writer: gpt-5}").summaries.model == "gpt-5"


MODEL = "model_list: [{{model_name: own, litellm_params: {{model: openai/mine}}, model_info: {{{}}}}}]\n"


@pytest.mark.parametrize(
    "place", ["summaries: {{writer: {}}}", "compaction: {{pipeline: [{{summarize: {{model: {}}}}}]}}"]
)
def test_a_writer_whose_window_nobody_knows_is_refused(place):
    for known in (
        place.format("gpt-4o-mini"),
        MODEL.format("max_input_tokens: 9000") + place.format("own"),
        MODEL.format("base_model: gpt-4o") + place.format("own"),
    ):
        read(known)
    for unknown in (place.format("nobody-knows-me"), MODEL.format("") + place.format("own")):
        error = refused(unknown)
        assert error.path in ("$.summaries.writer", "$.compaction.pipeline[0].summarize.model")
        assert "window of this model is not known" in error.message


def test_a_writer_of_one_models_pipeline_is_looked_at_too():
    error = refused("compaction: {models: {m: {pipeline: [superseded, {summarize: {model: nobody}}]}}}")
    assert error.path == "$.compaction.models.m.pipeline[1].summarize.model"


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("summaries: {wait_seconds: -1}", "$.summaries.wait_seconds"),
        ("summaries: {max_concurrent: 0}", "$.summaries.max_concurrent"),
        ("summaries: {writer: ''}", "$.summaries.writer"),
        ("budgets: {max_images: -1}", "$.budgets.max_images"),
        ("budgets: {models: {m: {max_body_bytes: many}}}", "$.budgets.models.m.max_body_bytes"),
        ("limits: {compaction_cache_bytes: -1}", "$.limits.compaction_cache_bytes"),
        ("limits: {response_cache_bytes: -1}", "$.limits.response_cache_bytes"),
        ("store: {spool_bytes: lots}", "$.store.spool_bytes"),
        ("store: {url: 'sqlite:////data/a.db', spool: /data/../data/a.db}", "$.store.spool"),
    ],
)
def test_a_figure_out_of_range_is_refused_at_its_path(text, path):
    assert refused(text).path == path


def test_budgets_are_the_models_own_then_those_of_all_then_the_providers():
    assert read("").budgets.of("any", "anthropic", 200_000) == RequestBudgets(max_body_bytes=32_000_000, max_images=100)
    assert read("").budgets.of("any", "anthropic", 1_000_000) == RequestBudgets(
        max_body_bytes=32_000_000, max_images=600
    )
    assert read("").budgets.of("any", "openai", 1_000_000) == RequestBudgets(
        max_body_bytes=512_000_000, max_images=1_500
    )
    assert read("").budgets.of("any", "litellm", 8_000) == RequestBudgets(max_body_bytes=0, max_images=0)
    stated = read("budgets: {max_images: 7, models: {m: {max_body_bytes: 1MB}, n: {max_images: 0}}}").budgets
    assert stated.of("any", "anthropic") == RequestBudgets(max_body_bytes=32_000_000, max_images=7)
    assert stated.of("m", "anthropic") == RequestBudgets(max_body_bytes=10**6, max_images=7)
    assert stated.of("n", "anthropic") == RequestBudgets(max_body_bytes=32_000_000, max_images=0)


def test_the_spool_is_beside_the_embedded_store_unless_it_is_put_elsewhere(monkeypatch):
    monkeypatch.setenv("HOME", "/home/some one")
    at_home = "/home/some one/.local/state/accordion"
    for text, path in (
        ("", f"{at_home}/accordion.db.spool"),
        ("store: {url: 'sqlite:////data/a%20b.db'}", "/data/a b.db.spool"),
        ("store: {url: 'redis://:pw@h:6379/0'}", f"{at_home}/spool-fdeebb8d57c80b51.log"),
        ("store: {url: 'memory://'}", ""),
        ("store: {url: 'redis://h', spool: ~/s.db}", "/home/some one/s.db"),
    ):
        assert read(text).store.spool_path() == path


def test_every_model_of_which_something_is_said_is_named_once():
    text = "thresholds: {models: {a: {hard: 0.9}}}\nbudgets: {models: {a: , b: {max_images: 1}}}"
    assert read("").configured_models() == ()
    assert read(text + "\ncompaction: {models: {c: {mode: off}}}").configured_models() == ("a", "c", "b")


def test_a_digest_that_nothing_shows_is_hinted_at():
    text = "compaction: {{pipeline: [{{compact_tool_results: {{digest_characters: 9, replacement: {}}}}}]}}"
    assert find_hints(read(text.format("reference"))) == ()
    (hint,) = find_hints(read(text.format("drop")))
    assert hint.startswith("$.compaction.pipeline[0].compact_tool_results.digest_characters: ")


def test_settings_with_pipelines_compare_by_value():
    text = "compaction: {pipeline: [{fixed_limits: {messages: 9}}]}"
    assert read(text) == read(text) != read("compaction: {pipeline: [fixed_limits]}")
    assert msgspec.structs.replace(read(text)) == read(text)

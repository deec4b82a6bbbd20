import re

import msgspec
import pytest

from accordion.config import ENVIRONMENT, Settings, find_hints, load
from accordion.model.budget import Thresholds
from accordion.model.errors import ConfigError


@pytest.fixture
def read(tmp_path):
    def reader(text: str, environ=None, overrides=None) -> Settings:
        file = tmp_path / "config.yaml"
        file.write_text(text, "utf-8")
        return load(file, environ or {}, overrides)

    return reader


def refused(read, text, environ=None, overrides=None) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        read(text, environ, overrides)
    return caught.value


MODEL = "model_list: [{{model_name: m, litellm_params: {{{}}}}}]"


@pytest.mark.parametrize(
    ("text", "path", "words"),
    [
        ("sevrer: {port: 1}", "$.sevrer", "did you mean `server`"),
        ("server: {prot: 1}", "$.server.prot", "did you mean `port`"),
        ("llm_stuff: {}", "$.llm_stuff", "known here: server, upstreams"),
        ("server: {port: many}", "$.server.port", "expected whole number, got text"),
        ("server: {port: 70000}", "$.server.port", "<= 65535"),
        ("server: {workers: 0}", "$.server.workers", ">= 1"),
        ("server: {workers: yes}", "$.server.workers", "whole number"),
        ("server: 5", "$.server", "expected mapping, got whole number"),
        ("server: {max_body_bytes: 3 parsecs}", "$.server.max_body_bytes", "64MiB"),
        ("server: {max_body_bytes: 0}", "$.server.max_body_bytes", "at least 1"),
        ("server: {max_body_bytes: -1}", "$.server.max_body_bytes", "64MiB"),
        (f"server: {{max_body_bytes: {'9' * 400}GB}}", "$.server.max_body_bytes", "64MiB"),
        ("upstreams: {openai: {base_url: api.openai.com}}", "$.upstreams.openai.base_url", "https://"),
        ("upstreams: {openai: {base_url: 'http://u:p@h'}}", "$.upstreams.openai.base_url", "without credentials"),
        ("upstreams: {openai: {base_url: 'http://h/v1?a=b'}}", "$.upstreams.openai.base_url", "query"),
        ("upstreams: {openai: {base_url: 'http://h:x/v1'}}", "$.upstreams.openai.base_url", "URL"),
        ("upstreams: {openai: {base_url: 'http://a..b/v1'}}", "$.upstreams.openai.base_url", "URL"),
        (f"upstreams: {{openai: {{base_url: 'http://{'x' * 64}.com/v1'}}}}", "$.upstreams.openai.base_url", "URL"),
        ("upstreams: {openai: {base_url: 'ftp://h/v1'}}", "$.upstreams.openai.base_url", "URL"),
        ("timeouts: {read_seconds: 0}", "$.timeouts.read_seconds", "> 0"),
        ("timeouts: {read_seconds: .nan}", "$.timeouts.read_seconds", "> 0"),
        ("timeouts: {read_seconds: .inf}", "$.timeouts.read_seconds", "<= 86400"),
        ("retries: {connect_attempts: 1.5}", "$.retries.connect_attempts", "whole number"),
        ("model_list: {}", "$.model_list", "expected list, got mapping"),
        ("model_list: [{model_name: m}]", "$.model_list[0].litellm_params", "required"),
        (MODEL.format("model: "), "$.model_list[0].litellm_params.model", "required"),
        (MODEL.format("model: 5"), "$.model_list[0].litellm_params.model", "expected text"),
        (MODEL.format("model: opnai/x"), "$.model_list[0].litellm_params.model", "provider"),
        (MODEL.format("model: openai/"), "$.model_list[0].litellm_params.model", "names no model"),
        (MODEL.format("model: x, api_kye: y"), "$.model_list[0].litellm_params.api_kye", "did you mean `api_key`"),
        (MODEL.format("model: x, api_base: nowhere"), "$.model_list[0].litellm_params.api_base", "URL"),
        (MODEL.format("model: x, api_key: 5"), "$.model_list[0].litellm_params.api_key", "quotes"),
        (MODEL.format("model: x, extra_headers: {'a b': c}"), "$.model_list[0].litellm_params.extra_headers", "a b"),
        (MODEL.format("model: x, extra_headers: [a]"), "$.model_list[0].litellm_params.extra_headers", "mapping"),
        ("model_list: [{model_name: m, litellm_params: {model: x}, model_info: {max_input: 1}}]",
         "$.model_list[0].model_info.max_input", "did you mean `max_input_tokens`"),
        ("model_list: [{model_name: openai, litellm_params: {model: x}}]", "$.model_list[0].model_name", "default"),
        ("proxy_keys: [{id: a b, key: k}]", "$.proxy_keys[0].id", "A-Z"),
        ("proxy_keys: [{id: a, key: ''}]", "$.proxy_keys[0].key", "non-empty"),
        ("proxy_keys: [{id: a, key: k y}]", "$.proxy_keys[0].key", "without spaces"),
        ("proxy_keys: [{id: a, key: k}, {id: a, key: l}]", "$.proxy_keys[1].id", "proxy_keys[0]"),
        ("proxy_keys: [{id: a, key: k}, {id: b, key: k}]", "$.proxy_keys[1].key", "same"),
        ("windows: {default: 0}", "$.windows.default", ">= 1"),
        ("thresholds: {conversation: 1.1}", "$.thresholds.conversation", "a share"),
        ("thresholds: {conversation: .nan}", "$.thresholds.conversation", "a number from 0 to 1"),
        ("thresholds: {generation: 0.9, hard: 0.8}", "$.thresholds.hard", "at least `generation`"),
        ("thresholds: {models: {a: {hard: 0.9}, b-1: {hard: 2}}}", "$.thresholds.models.b-1.hard", "a share"),
        ("thresholds: {models: {b.1: {hrd: 1}}}", '$.thresholds.models["b.1"].hrd', "did you mean `hard`"),
        ("thresholds: {generation: 0.9, models: {x: {hard: 0.8}}}", "$.thresholds.models.x.hard", "at least"),
        ("store: {url: 'postgres://h/d'}", "$.store.url", "sqlite:///"),
        ("store: {url: 'sqlite:///:memory:'}", "$.store.url", "memory://"),
        ("server: [port]", "$.server", "got list; remove the `-` before its keys"),
        ("proxy_keys: {id: a}", "$.proxy_keys", "got mapping; write `- ` before each entry"),
        ("server:\n  port:8787", "$.server", "write a space after the colon of `port`"),
        ("server:8787", "$", "write a space after the colon of `server`"),
        ("logging: {level: inof}", "$.logging.level", "did you mean `info`?"),
        ("compaction: {mode: obsreve}", "$.compaction.mode", "auto, observe, off; did you mean `observe`?"),
        ("archive: {record: al}", "$.archive.record", "did you mean `all`?"),
        ("server: {responses_websocket: rely}", "$.server.responses_websocket", "did you mean `relay`?"),
        ("summaries: {writer: extractve}", "$.summaries.writer", "did you mean `extractive`?"),
        ("summaries: {writer: our-model}", "$.summaries.writer", "the window of this model is not known: set"),
        ("memory: {writer: rule}", "$.memory.writer", "did you mean `rules`?"),
        (MODEL.format("model: openai/gpt-5") + "\nmemory: {writer: mm}", "$.memory.writer", "did you mean `m`?"),
        ("logging: {level: loud}", "$.logging.level", "expected one of debug, info, warning, error"),
        ("- a", "$", "mapping of sections"),
        ("server: {1: x}", "$.server", "key `1` is not a text"),
        ("server:\n  port: 1\n  host: h\n  port: 2", "$", "key `port` on line 4 is already set on line 2"),
        ("server: {port: 1, port: 1}", "$", "key `port` on line 1"),
        ("server: [", "$", "line 2, column 1"),
        ("a: &x {b: *x}", "$", "alias"),
        ("a: \x00", "$", "invalid YAML"),
        ("server: !!python/object:os.system {}", "$", "line 1"),
        ("server: {host: 0x_}", "$", "line 1, column 16: this is not of the kind `int`"),
        ("server: {host: 0b_}", "$", "`int`"),
        ("server: {port: !!int abc}", "$", "`int`"),
        ("server: {port: !!float abc}", "$", "`float`"),
        ("server: {host: !!bool abc}", "$", "`bool`"),
        ("server: {host: !!timestamp abc}", "$", "`timestamp`"),
        (f"server: {{port: {'9' * 5000}}}", "$", "`int`"),
        ('server: {host: "a\\0b"}', "$.server.host", "an address such as"),
        ('store: {spool: "a\\0b"}', "$.store.spool", "null"),
        ("store: {url: 'sqlite:///a%00b'}", "$.store.url", "sqlite:///"),
    ],
)  # fmt: skip
def test_an_error_names_the_path_of_the_key_and_what_is_expected(read, text, path, words):
    error = refused(read, text)
    assert error.path == path
    assert words in error.message
    assert error.message.startswith(f"{error.file}: {'' if path == '$' else f'{path}: '}")
    assert error.file.endswith("/config.yaml")


def test_an_empty_file_and_empty_sections_mean_the_defaults(read):
    assert read("") == read("server:\nmodel_list:\nthresholds: {models: , hard: }") == Settings()


def test_a_complete_entry_is_read(read):
    settings = read(
        "model_list:\n- model_name: m\n  litellm_params: {model: azure/d, api_base: 'https://h/', api_key: k,"
        " extra_headers: {x-a: b}, api_version: 2024-02-01, rpm: 5}\n"
        "  model_info: {max_input_tokens: 10, base_model: gpt-5, id: i, mode: chat}"
    )
    entry = settings.model_list[0].entry()
    assert (entry.name, entry.model, entry.api_base, entry.api_key) == ("m", "azure/d", "https://h/", "k")
    assert entry.extra_headers == (("x-a", "b"),)
    assert entry.options == (("api_version", "2024-02-01"), ("rpm", 5))
    assert settings.model_list[0].model_info.max_input_tokens == 10


@pytest.mark.parametrize(
    ("text", "size"), [("64MiB", 64 << 20), ("1.5 kb", 1500), ("100", 100), ("2GB", 2 * 10**9), ("7", 7), ("8b", 8)]
)
def test_a_size_may_have_a_unit(read, text, size):
    assert read(f"server: {{max_body_bytes: {text}}}").server.max_body_bytes == size
    assert read(f"server: {{max_body_bytes: '{text}'}}").server.max_body_bytes == size


@pytest.mark.parametrize(
    ("text", "share"),
    [("5%", 0.05), ("'2.5 %'", 0.025), ("0.05", 0.05), ("'${SHARE}'", 0.1), ("100%", 1.0), ("0", 0.0)],
)
def test_a_share_may_be_in_per_cent(read, text, share):
    settings = read(f"compaction: {{holdout: {text}}}", {"SHARE": "0.1"})
    assert settings.compaction.holdout == pytest.approx(share)


def test_compaction_cannot_be_stopped_where_nothing_is_compared(read):
    assert read("compaction: {holdout: 5%, stop_if_worse: true}").compaction.stop_if_worse
    error = refused(read, "compaction: {stop_if_worse: true}")
    assert (error.path, "needs a hold-out" in error.message) == ("$.compaction.stop_if_worse", True)


def test_every_share_of_the_settings_may_be_in_per_cent(read):
    section = "{conversation: 60%, conversation_target: 30%, generation: 80%, generation_target: 30%, hard: 90%}"
    settings = read(
        f"thresholds: {{models: {{a: {{delegated: {section}}}}}, soft: 5%}}\nmemory: {{recall: {{relevance: 60%}}}}\n"
        "compaction: {pipeline: [images: {share: 40%}, body: {share: 30%}]}"
    )
    thresholds = settings.thresholds.thresholds_for("a", delegated=True)
    assert thresholds == Thresholds(0.6, 0.8, 0.9, 0.3, 0.3, 0.05)
    assert msgspec.json.decode(msgspec.json.encode(thresholds), type=Thresholds) == thresholds
    assert settings.memory.recall.relevance == 0.6
    assert [entry.options.share for entry in settings.compaction.pipeline] == [0.4, 0.3]


@pytest.mark.parametrize("text", ["101%", "500", "-1%", "half", "true", "'1e1'", "-0.1", ".nan"])
def test_a_share_outside_the_whole_is_refused(read, text):
    assert "expected a share: a number from 0 to 1" in refused(read, f"compaction: {{holdout: {text}}}").message


@pytest.mark.parametrize("text", ["60", "'60'", "60.0"])
def test_a_share_that_lacks_its_percent_sign_gets_a_suggestion(read, text):
    error = refused(read, f"thresholds: {{conversation: {text}}}")
    assert error.message.endswith("$.thresholds.conversation: expected a share; did you mean 0.6 or 60%?")


def test_a_share_that_must_not_be_zero_is_refused(read):
    error = refused(read, "compaction: {pipeline: [images: {share: 0}]}")
    assert (error.path, error.reason) == (
        "$.compaction.pipeline[0].images.share", "expected a share above 0, such as 0.5 or 50%",
    )  # fmt: skip


def test_thresholds_of_a_model_fall_back_to_those_of_all(read):
    thresholds = read("thresholds: {conversation: 0.4, hard: 0.9, models: {m: {generation: 0.7}}}").thresholds
    assert thresholds.thresholds_for("m") == Thresholds(0.4, 0.7, 0.9, conversation_target=0.2)
    assert thresholds.thresholds_for("other") == Thresholds(0.4, None, 0.9, conversation_target=0.2)


def test_a_generation_threshold_of_one_is_off_and_may_stand_above_the_hard_limit(read):
    assert read("thresholds: {generation: 1.0, hard: 0.9}").thresholds.generation == 1.0


def test_the_store_in_the_home_directory_is_found(read, monkeypatch):
    monkeypatch.setenv("HOME", "/home/some one")
    assert read("").store.url.reveal() == "sqlite:////home/some%20one/.local/state/accordion/accordion.db"
    assert read("store: {url: 'sqlite:////data/a.db'}").store.url.reveal() == "sqlite:////data/a.db"
    assert read("store: {url: 'redis://:pw@h:6379/0'}").store.url.reveal() == "redis://:pw@h:6379/0"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("memory://", "memory://"),
        ("sqlite:////data/a.db", "sqlite:////data/a.db"),
        ("sqlite:///~/a.db", "sqlite:///~/a.db"),
        ("redis://h", "redis://h"),
        ("rediss://user:pw@h:6379/0?password=pw", "rediss://***@h:6379"),
        ("valkey+cluster://:p%40w@h:1", "valkey+cluster://***@h:1"),
    ],
)
def test_a_store_is_shown_without_its_credentials(read, url, shown):
    store = read(f"store: {{url: '{url}'}}").store
    assert str(store.url) == shown == f"{store.url!r}"


@pytest.mark.parametrize("url", ["redis://u:1#2@h", "redis://u:1?2@h", "redis://u:1/2@h", "redis://", "sqlite://", "a"])
def test_a_store_whose_password_would_be_taken_for_its_host_is_refused(read, url):
    assert refused(read, f"store: {{url: '{url}'}}").path == "$.store.url"


def test_command_line_goes_over_environment_over_file(read):
    text = "server: {host: file, port: 1, workers: 2}"
    environ = {"ACCORDION_HOST": "environment", "ACCORDION_PORT": "2"}
    server = read(text, environ, {"server.port": 3, "server.workers": None}).server
    assert (server.host, server.port, server.workers) == ("environment", 3, 2)


def test_every_environment_name_sets_its_key(read):
    values = {
        "ACCORDION_HOST": "h",
        "ACCORDION_PORT": "99",
        "ACCORDION_STORE": "memory://",
        "ACCORDION_ARCHIVE_KEY": "0f" * 32,
        "ACCORDION_OPENAI_BASE_URL": "http://o/v1",
        "ACCORDION_ANTHROPIC_BASE_URL": "http://a",
        "ACCORDION_GEMINI_BASE_URL": "http://g",
        "ACCORDION_AZURE_BASE_URL": "http://z",
        "ACCORDION_VERTEX_BASE_URL": "http://v",
        "ACCORDION_BEDROCK_BASE_URL": "http://b",
    }
    assert set(values) == set(ENVIRONMENT)
    settings = read("", values)
    assert (settings.server.host, settings.server.port, settings.store.url.reveal()) == ("h", 99, "memory://")
    assert settings.archive.key.reveal() == "0f" * 32
    assert settings.upstreams.openai.base_url == "http://o/v1"
    assert settings.upstreams.anthropic.base_url == "http://a"
    assert settings.upstreams.gemini.base_url == "http://g"
    upstreams = settings.upstreams
    assert (upstreams.azure.base_url, upstreams.vertex.base_url, upstreams.bedrock.base_url) == (
        "http://z", "http://v", "http://b",
    )  # fmt: skip
    assert read("", dict.fromkeys(values, "")) == Settings()


@pytest.mark.parametrize(
    ("value", "level", "form"), [("debug", "debug", "text"), ("JSON", "info", "json"), ("Error, json", "error", "json")]
)
def test_accordion_log_holds_a_level_or_a_format_or_both(read, value, level, form):
    logging = read("", {"ACCORDION_LOG": value}).logging
    assert (logging.level, logging.format) == (level, form)


def test_an_error_from_environment_or_command_line_says_where_it_comes_from(read):
    for words, environ, overrides in (
        ("(from ACCORDION_PORT)", {"ACCORDION_PORT": "x"}, {}),
        ("did you mean `debug`? (from ACCORDION_LOG)", {"ACCORDION_LOG": "json,debgu"}, {}),
        ("(from the command line)", {}, {"server.workers": 0}),
    ):
        error = refused(read, "server: {port: 1}", environ, overrides)
        assert words in error.message
        assert error.file == "", "the file is right"
    assert "did you mean `port`" in refused(read, "", {}, {"server.prot": 1}).message


def test_the_file_is_the_one_given_or_named_or_in_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load(None, {}) == Settings()
    (tmp_path / "config.yaml").write_text("server: {port: 1}")
    (tmp_path / "named.yaml").write_text("server: {port: 2}")
    (tmp_path / "given.yaml").write_text("server: {port: 3}")
    named = {"ACCORDION_CONFIG": str(tmp_path / "named.yaml")}
    assert load(None, {}).server.port == 1
    assert load(None, named).server.port == 2
    assert load(tmp_path / "given.yaml", named).server.port == 3
    for missing in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(ConfigError, match=re.escape(str(missing))):
            load(missing, {})
    (tmp_path / "latin.yaml").write_bytes(b"# \xe9")
    with pytest.raises(ConfigError, match="UTF-8"):
        load(tmp_path / "latin.yaml", {})


def test_hints_name_what_has_no_effect(read):
    everywhere = f"\nserver: {{host: 0.0.0.0}}\narchive: {{key: '{'00' * 32}'}}\n"
    text = MODEL.format("model: openai/x, api_key: k, rpm: 5") + everywhere
    assert [hint.partition(":")[0] for hint in find_hints(read(text))] == [
        "$.model_list[0].litellm_params",
        "$.model_list[0].litellm_params",
        "$.model_list[0].model_info.max_input_tokens",
    ]
    keys = "\nproxy_keys: [{id: a, key: b}]"
    text = MODEL.format("model: gemini/gemini-2.5-pro, api_key: k, rpm: 5") + everywhere
    assert find_hints(read(text + keys)) == ()
    upstreams = "upstreams: {openai: {api_key: k}, anthropic: {api_key: k}}" + everywhere
    assert [hint.partition(":")[0] for hint in find_hints(read(upstreams))] == [
        "$.upstreams.openai.api_key",
        "$.upstreams.anthropic.api_key",
    ]
    assert find_hints(read(upstreams + keys)) == ()
    assert find_hints(read(upstreams.removesuffix(everywhere))) == ()

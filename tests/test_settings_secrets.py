"""What variables put into the file, and that nothing secret is ever shown."""

import traceback

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from accordion.config import Settings, find_hints
from accordion.config.load import build
from accordion.config.yaml_text import expand, read_tree
from accordion.model.errors import ConfigError

SECRET = "hush-4711-hush"
MODEL = "model_list: [{{model_name: m, litellm_params: {{{}}}}}]"


def read(text: str, environ: dict[str, str]) -> Settings:
    return build(text.encode(), environ, {})


names = st.from_regex(r"[A-Z_][A-Z0-9_]{0,8}", fullmatch=True)
plain = st.text(alphabet=st.characters(exclude_characters="$", exclude_categories=["Cs"]), max_size=20)


@given(plain, names, st.text(max_size=20), plain)
def test_a_reference_is_replaced_by_the_variable_as_it_is(before, name, value, after):
    if before.startswith("os.environ/"):
        return
    environ = {name: value}
    assert expand(f"{before}${{{name}}}{after}", environ, "$") == before + value + after
    assert expand(f"os.environ/{name}", environ, "$") == value
    assert expand(f"{before}${{{name}:-}}{after}", environ, "$") == before + value + after
    assert expand(f"{before}$${{{name}}}{after}", environ, "$") == f"{before}${{{name}}}{after}"


@given(names, st.text(alphabet=st.characters(exclude_characters="}"), max_size=20))
def test_a_default_stands_for_a_variable_that_is_absent_or_empty(name, default):
    assert expand(f"${{{name}:-{default}}}", {}, "$") == default
    assert expand(f"${{{name}:-{default}}}", {name: ""}, "$") == default
    with pytest.raises(ConfigError, match=rf"^\$\.a: .*\b{name} is not set"):
        expand(f"${{{name}}}", {}, "$.a")


@pytest.mark.parametrize("text", ["${", "${}", "${1X}", "a ${NAME", "${NAME:default}", "os.environ/", "os.environ/A B"])
def test_a_malformed_reference_is_an_error(text):
    with pytest.raises(ConfigError):
        expand(text, {"NAME": "x", "A": "y"}, "$.a")


def test_references_are_expanded_everywhere_but_in_keys_and_may_stand_for_numbers():
    assert read("server: {port: '${P}', host: os.environ/H}", {"P": "77", "H": "h"}).server.port == 77
    with pytest.raises(ConfigError, match="GONE is not set") as caught:
        read("model_list: [{model_name: '${GONE}', litellm_params: {model: x}}]", {})
    assert caught.value.path == "$.model_list[0].model_name"
    assert read_tree("'${K}': [a, '${K}']", {"K": "v"}) == {"${K}": ["a", "v"]}


PLACES = [
    "proxy_keys: [{id: a, key: '${S}'}]",
    "proxy_keys: [{id: a, key: '${S} ${S}'}]",
    "proxy_keys: [{id: '${S} ', key: a}]",
    "proxy_keys: [{id: a, key: '${S}'}, {id: b, key: '${S}'}]",
    "proxy_keys: ${S}",
    MODEL.format("model: x, api_key: '${S}'"),
    MODEL.format("model: x, api_key: '${S}\\n'"),
    MODEL.format("model: x, api_key: ['${S}']"),
    MODEL.format("model: '${S}/x'"),
    MODEL.format("model: x, api_base: '${S}'"),
    MODEL.format("model: x, extra_headers: {a: '${S}'}"),
    MODEL.format("model: x, extra_headers: {a: '${S}\u00e9'}"),
    MODEL.format("model: x, aws_secret_access_key: '${S}'"),
    "store: {url: 'redis://:${S}@h:6379/0'}",
    "store: {url: 'http://${S}'}",
    "upstreams: {openai: {base_url: 'http://${S}@h'}}",
    "logging: {level: '${S}'}",
    "summaries: {writer: '${S}'}",
    "compaction: {mode: '${S}', pipeline: '${S}'}",
    "compaction: {pipeline: ['${S}']}",
    "compaction: {pipeline: [{fixed_limits: {tokens: '${S}'}}]}",
    "server: {port: '${S}', max_body_bytes: '${S}'}",
    f"proxy_keys: [{{id: a, key: *{SECRET} }}]",
    f"proxy_keys: [{{id: a, key: !{SECRET} }}]",
    f"proxy_keys: [{{id: a, key: '{SECRET}]",
    f'proxy_keys: [{{id: a, key: "{SECRET}\\q"}}]',
    f"proxy_keys:\n- id: a\n  key: a\n {SECRET}",
]


@pytest.mark.parametrize("text", PLACES)
def test_a_secret_shows_in_no_repr_no_text_and_no_error(text):
    assert not [shown for shown in everything_shown(lambda: read(text, {"S": SECRET})) if SECRET in shown]


sections = [field.name for field in msgspec.structs.fields(Settings)]
keys = st.sampled_from([*sections, "base_url", "openai", "models", "url", "key", "id", "model_name", "model", "level"])
trees = st.recursive(
    st.sampled_from(["${S}", "a ${S}", "os.environ/S", "redis://:${S}@h", "x/${S}", 5, None]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(sections), trees, min_size=1, max_size=2))
def test_a_secret_in_any_place_right_or_wrong_is_never_shown(tree):
    text = yaml.safe_dump(tree).encode()
    assert not [shown for shown in everything_shown(lambda: build(text, {"S": SECRET}, {})) if SECRET in shown]


def everything_shown(make) -> list[str]:
    try:
        settings = make()
    except ConfigError as caught:
        return ["".join(traceback.format_exception(caught)), repr(caught), caught.message, repr(caught.param)]
    things = [
        settings,
        settings.store,
        settings.store.url,
        *settings.proxy_keys,
        *settings.model_list,
        find_hints(settings),
    ]
    things += [entry.key for entry in settings.proxy_keys]
    for model in settings.model_list:
        params = model.litellm_params
        things += [params, params.api_key, params.extra_headers, params.options, model.entry()]
    return [show(thing) for thing in things for show in (repr, str, "{}".format)]

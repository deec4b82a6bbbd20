import ast
import importlib.util
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.model.errors import BadRequest, NotFound
from accordion.model.ports import Route, Router
from accordion.providers.http.routes import (
    DEFAULT_NAMES,
    OPENAI_COMPATIBLE,
    PROVIDERS,
    ModelEntry,
    RouteTable,
    Upstreams,
    for_protocol,
    routes_from,
    url,
)

OPENAI = "https://api.openai.com/v1"
ANTHROPIC = "https://api.anthropic.com"
GOOGLE = "https://generativelanguage.googleapis.com"


def upstreams(openai: str = OPENAI, anthropic: str = ANTHROPIC, google: str = GOOGLE) -> Upstreams:
    return {"openai": (openai, ""), "anthropic": (anthropic, ""), "gemini": (google, "")}


DEFAULTS: Router = RouteTable(upstreams(), {})


def one(model: str, *, name: str = "alias", **given_values) -> Route:
    routes = routes_from([ModelEntry(name, model, **given_values)], upstreams())
    return routes.route("openai", name)


@pytest.mark.parametrize("family", ["openai", "anthropic", "gemini"])
def test_without_a_configured_model_the_family_decides_the_upstream(family):
    assert DEFAULTS.route(family, None).family == family
    assert DEFAULTS.route(family, "not-configured").family == family


def test_a_default_route_changes_no_model_and_has_no_key():
    route = DEFAULTS.route("openai", "gpt-5")
    assert (route.model, route.api_key, route.extra_headers, route.options) == (None, "", (), ())
    assert {DEFAULTS.route(family, None).name for family in upstreams()} < DEFAULT_NAMES


@pytest.mark.parametrize(
    ("family", "target"),
    [("azure", "/openai/v1/responses"), ("vertex", "/v1/projects/p/x"), ("bedrock", "/model/m/invoke")],
)
def test_a_path_of_a_cloud_leads_to_its_upstream_whichever_model_it_names(family, target):
    routes = RouteTable({**upstreams(), family: ("https://cloud.test/", "k")}, {"m": Route("m", "openai")})
    route = routes.route(family, "m")
    assert (route.family, route.api_key, url(route, target)) == (family, "k", f"https://cloud.test{target}")
    with pytest.raises(NotFound, match=rf"upstreams\.{family}\.base_url"):
        DEFAULTS.route(family, "m")


def test_a_configured_model_decides_over_the_family():
    routes = routes_from([ModelEntry("claude", "anthropic/claude-opus")], upstreams())
    assert routes.route("openai", "claude").family == "anthropic"
    assert routes.route("anthropic", "claude").name == "claude"
    assert set(routes.models) == {"claude"}


@pytest.mark.parametrize(
    ("base", "target", "expected"),
    [
        (OPENAI, "/v1/chat/completions", "https://api.openai.com/v1/chat/completions"),
        (OPENAI + "/", "/v1/models/a%2Fb", "https://api.openai.com/v1/models/a%2Fb"),
        (OPENAI, "/v1", "https://api.openai.com/v1"),
        (OPENAI, "/v1?x=1", "https://api.openai.com/v1?x=1"),
        (OPENAI, "/v1//files/%20?q=%2e%2e/..", "https://api.openai.com/v1//files/%20?q=%2e%2e/.."),
        ("http://gw:8000/team/openai/v1", "/v1/files?a=b&a=c", "http://gw:8000/team/openai/v1/files?a=b&a=c"),
        ("http://gw:8000", "/v1/chat/completions", "http://gw:8000/chat/completions"),
    ],
)
def test_an_openai_base_stands_for_v1_itself(base, target, expected):
    routes = RouteTable(upstreams(openai=base), {})
    assert url(routes.route("openai", None), target) == expected


@pytest.mark.parametrize(
    ("base", "expected"),
    [
        (ANTHROPIC, "https://api.anthropic.com/v1/messages?beta=true"),
        (ANTHROPIC + "/", "https://api.anthropic.com/v1/messages?beta=true"),
        (ANTHROPIC + "/v1", "https://api.anthropic.com/v1/messages?beta=true"),
        (ANTHROPIC + "/v1/", "https://api.anthropic.com/v1/messages?beta=true"),
        (ANTHROPIC + "/v1/messages", "https://api.anthropic.com/v1/messages?beta=true"),
        ("http://gw/anthropic", "http://gw/anthropic/v1/messages?beta=true"),
        ("http://gw/anthropic/v1/", "http://gw/anthropic/v1/messages?beta=true"),
    ],
)
def test_an_anthropic_base_stands_before_v1(base, expected):
    target = "/v1/messages?beta=true"
    assert url(RouteTable(upstreams(anthropic=base), {}).route("anthropic", None), target) == expected
    entry = ModelEntry("c", "anthropic/c", api_base=base)
    assert url(routes_from([entry], upstreams()).route("openai", "c"), target) == expected


@pytest.mark.parametrize(
    ("base", "target"),
    [
        (GOOGLE, "/v1beta/models/g:streamGenerateContent?alt=sse"),
        (GOOGLE + "/", "/v1/models/g:generateContent"),
        (GOOGLE + "/v1beta", "/v1alpha/models"),
        (GOOGLE + "/v1beta/", "/upload/v1beta/files?key=k"),
        (GOOGLE + "/v1", "/v1beta/models/g:countTokens"),
    ],
)
def test_a_google_base_stands_before_the_version(base, target):
    assert url(RouteTable(upstreams(google=base), {}).route("gemini", None), target) == GOOGLE + target


@pytest.mark.parametrize(
    ("given_values", "expected"),
    [
        ({}, (GOOGLE, "")),
        ({"api_key": "k"}, (GOOGLE, "k")),
        ({"api_base": "http://h/gemini/v1beta", "api_key": "k"}, ("http://h/gemini", "k")),
    ],
)
def test_a_model_of_google_needs_no_translation_for_its_own_protocol(given_values, expected):
    routes = routes_from([ModelEntry("alias", "gemini/gemini-pro", **given_values)], upstreams())
    route = routes.for_protocol(routes.route("gemini", "alias"), "gemini")
    assert (route.family, route.model, (route.base_url, route.api_key)) == ("gemini", "gemini-pro", expected)
    assert routes.for_protocol(routes.route("openai", "alias"), "chat").family == "litellm"


def test_a_model_of_a_cloud_is_translated_for_the_clouds_own_protocol_too():
    """Its credentials may be those of the machine, which only a translation uses."""
    routes = routes_from([ModelEntry("alias", "bedrock/amazon.nova-pro-v1:0")], upstreams())
    route = routes.for_protocol(routes.route("openai", "alias"), "converse")
    assert (route.family, route.model) == ("litellm", "bedrock/amazon.nova-pro-v1:0")


def test_a_model_of_google_under_its_own_name_is_not_renamed():
    routes = routes_from([ModelEntry("gemini-pro", "gemini/gemini-pro")], upstreams())
    assert routes.for_protocol(routes.route("gemini", "gemini-pro"), "gemini").model is None


@pytest.mark.parametrize(
    "target",
    [
        "/",
        "/v2/files",
        "/v1betamax/models",
        "/v12/x",
        "/upload",
        "/upload/x",
        "/v1@evil.example/x",
        "/admin",
        "",
        "//e/v1",
        "/v1/v1/messages",
        "/v1/v1beta/models/m:generateContent",
    ],
)
def test_what_does_not_begin_with_a_version_is_not_found(target):
    for family in upstreams():
        with pytest.raises(NotFound):
            url(DEFAULTS.route(family, None), target)


@pytest.mark.parametrize(
    "target",
    [
        "/v1/../admin",
        "/v1/..",
        "/v1/files/../../admin?x=1",
        "/v1/%2e%2e/admin",
        "/v1/.%2E/admin",
        "/v1/files/..%2f..%2fadmin",
        "/v1/%252e%252e/admin",
        "/v1/..;/admin",
        "/v1/..\\admin",
        "/v1/..%5cadmin",
    ],
)
def test_a_path_that_climbs_out_of_the_base_is_refused(target):
    for family in upstreams():
        with pytest.raises(BadRequest):
            url(DEFAULTS.route(family, None), target)


@pytest.mark.parametrize(
    "target", ["/v1/files/a..b", "/v1/files/...", "/v1/./files", "/v1/files/100%25", "/v1/x?up=../.."]
)
def test_dots_that_climb_nowhere_pass_as_they_came(target):
    assert url(DEFAULTS.route("openai", None), target) == OPENAI + target[3:]


@given(
    st.text(alphabet="ab/.;%2eE5cfF?&=@:\\-_~", max_size=40),
    st.sampled_from([("openai", "https://gw.example:8443/tenant/v1"), ("anthropic", "https://gw.example:8443/tenant")]),
)
def test_no_target_reaches_another_host_or_leaves_the_bases_path(rest, upstream):
    family, base = upstream
    try:
        made = url(Route("m", family, base), "/v1" + rest)
    except (NotFound, BadRequest):
        return
    parts = urlsplit(made)
    assert parts.netloc == "gw.example:8443"
    assert parts.path == "/tenant/v1" or parts.path.startswith("/tenant/v1/")
    assert ".." not in parts.path.split("/")
    assert made == "https://gw.example:8443/tenant/v1" + rest


@pytest.mark.parametrize(
    ("model", "api_base", "family", "base", "name"),
    [
        ("openai/gpt-5", "", "openai", OPENAI, "gpt-5"),
        ("gpt-5", "", "openai", OPENAI, "gpt-5"),
        ("openai/org/served", "http://h/v1/", "openai", "http://h/v1", "org/served"),
        ("anthropic/claude-x", "", "anthropic", ANTHROPIC, "claude-x"),
        ("claude-x", "", "anthropic", ANTHROPIC, "claude-x"),
        ("anthropic/claude-x", "http://h/v1", "anthropic", "http://h", "claude-x"),
        ("hosted_vllm/org/m", "http://h/v1", "openai", "http://h/v1", "org/m"),
        ("lm_studio/m", "http://h/v1", "openai", "http://h/v1", "m"),
        ("hosted_vllm/org/m", "", "litellm", "", "hosted_vllm/org/m"),
        ("gemini/gemini-3", "", "litellm", "", "gemini/gemini-3"),
        ("azure/deployment", "http://h/", "litellm", "http://h", "azure/deployment"),
        ("ollama_chat/m", "http://h", "litellm", "http://h", "ollama_chat/m"),
    ],
)
def test_the_provider_before_the_slash_decides_the_family(model, api_base, family, base, name):
    route = one(model, api_base=api_base)
    assert (route.family, route.base_url, route.model, route.name) == (family, base, name, "alias")


def test_a_model_that_keeps_its_name_is_not_written_again():
    assert one("openai/gpt-5", name="gpt-5").model is None
    assert one("gemini/g", name="gemini/g").model == "gemini/g"


def test_key_headers_and_options_are_handed_on():
    route = one("bedrock/m", api_key="k", extra_headers=(("x-a", "1"),), options=(("aws_region_name", "eu"),))
    assert (route.api_key, route.extra_headers) == ("k", (("x-a", "1"),))
    assert route.options == (("aws_region_name", "eu"),)


@pytest.mark.parametrize("model", ["meta-llama/Llama-3", "", "openai/", "/m", "opnai/gpt-5"])
def test_an_unknown_provider_or_a_missing_name_is_an_error(model):
    with pytest.raises(ValueError):
        one(model)


def test_custom_llm_provider_names_the_provider_outright():
    route = one("org/m", options=(("custom_llm_provider", "brand_new"),))
    assert (route.family, route.model, route.options) == ("litellm", "org/m", (("custom_llm_provider", "brand_new"),))
    native = one("org/m", options=(("custom_llm_provider", "openai"),))
    assert (native.family, native.model) == ("openai", "org/m")


@pytest.mark.parametrize(
    ("model", "protocol_name", "family", "name"),
    [
        ("anthropic/c", "messages", "anthropic", "c"),
        ("anthropic/c", "chat", "litellm", "anthropic/c"),
        ("anthropic/c", "responses", "litellm", "anthropic/c"),
        ("anthropic/c", "", "anthropic", "c"),
        ("openai/g", "chat", "openai", "g"),
        ("openai/g", "responses", "openai", "g"),
        ("openai/g", "messages", "litellm", "openai/g"),
        ("gemini/g", "messages", "litellm", "gemini/g"),
        ("gemini/g", "chat", "litellm", "gemini/g"),
    ],
)
def test_a_model_of_another_protocol_is_reached_by_translation(model, protocol_name, family, name):
    route = for_protocol(one(model), protocol_name)
    assert (route.family, route.model) == (family, name)


def test_a_translation_keeps_base_key_and_a_name_that_was_not_written():
    route = for_protocol(one("anthropic/claude-x", name="claude-x", api_base="http://h/v1", api_key="k"), "chat")
    assert (route.model, route.base_url, route.api_key) == ("anthropic/claude-x", "http://h", "k")


def test_the_default_upstreams_are_never_translated_for():
    route = DEFAULTS.route("anthropic", None)
    assert for_protocol(route, "chat") is route


def test_the_router_port_gives_what_the_functions_give():
    route = one("anthropic/c")
    assert DEFAULTS.for_protocol(route, "chat") == for_protocol(route, "chat")
    assert DEFAULTS.url(route, "/v1/messages?a") == url(route, "/v1/messages?a")


@pytest.mark.parametrize("target", ["/v1beta/models/m:embedContent", "/v1alpha", "/v1beta1", "/upload/v1/files"])
def test_a_path_of_google_does_not_become_a_part_of_another_host(target):
    with pytest.raises(NotFound, match="its paths begin with /v1"):
        url(Route("m", "openai", "https://host.example"), target)


def test_a_translated_model_has_no_url_of_its_own():
    with pytest.raises(NotFound, match="alias"):
        url(one("gemini/g"), "/v1/embeddings")


def test_an_entrys_repr_shows_no_secret():
    entry = ModelEntry("m", "openai/m", "http://u:hidden@h", "hidden", (("k", "hidden"),), (("k", "hidden"),))
    assert "hidden" not in repr(entry)


def test_every_provider_of_the_installed_litellm_is_known():
    found = importlib.util.find_spec("litellm")
    assert found is not None
    assert found.origin is not None
    tree = ast.parse((Path(found.origin).parent / "types" / "utils.py").read_text("utf-8"))
    listed = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "LlmProviders")
    names = {n.value.value for n in listed.body if isinstance(n, ast.Assign) and isinstance(n.value, ast.Constant)}
    assert len(names) > 100
    assert names <= PROVIDERS
    assert OPENAI_COMPATIBLE < PROVIDERS


def test_a_name_of_any_length_takes_no_memory_and_no_time() -> None:
    routes = routes_from([ModelEntry("team-*-gpt-*-eu", "openai/*-*")], upstreams())
    assert routes.route("openai", "team-a-gpt-b-eu").model == "a-b"
    assert routes.route("openai", "team-" + "-gpt-" * 1_000_000).name == "openai"
    assert len(routes._routes_by_name) == 1

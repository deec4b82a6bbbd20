"""How each agent is pointed at a proxy: by variables and options, never by a file."""

import asyncio
import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from accordion.cli.agents import ANTHROPIC, GEMINI, OPENAI, Agent, AgentCommand, AgentError, find_agent
from accordion.cli.running_proxy import RunningProxy
from tests.loopback import Loopback, replies_json

URL = "http://127.0.0.1:4000"
PROXY = RunningProxy(URL, "1.0")


def agent(folder: Path, *words: str, printed: str = "", **environ: str) -> Agent:
    """Returns the agent of a program that prints `printed`, whatever it is asked."""
    program = folder / "bin" / words[0]
    program.parent.mkdir(exist_ok=True)
    (folder / "printed").write_text(printed)
    program.write_text(f"#!/bin/sh\ncat {folder}/printed\n")
    program.chmod(0o755)
    environ = {"HOME": str(folder), "PATH": "/usr/bin:/bin", **environ}
    project = folder / "project"
    for each in (project, folder / "files"):
        each.mkdir(exist_ok=True)
    return find_agent(AgentCommand((str(program), *words[1:]), environ, project, folder / "files"))


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_another_command_gets_the_usual_variables(tmp_path: Path) -> None:
    own = {
        "OPENAI_API_BASE": "http://gate/v1",
        "ANTHROPIC_BASE_URL": "http://gate",
        "GOOGLE_GEMINI_BASE_URL": "http://g",
    }
    found = agent(tmp_path, "aider", "--model", "m", **own)
    command = found.through(PROXY)
    assert found.upstreams == {OPENAI: "http://gate/v1", ANTHROPIC: "http://gate", GEMINI: "http://g"}
    assert command.arguments[1:] == ("--model", "m")
    names = ("OPENAI_BASE_URL", "OPENAI_API_BASE", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_BASE")
    assert [command.environ[name] for name in names] == [f"{URL}/v1", f"{URL}/v1", URL, URL]
    assert command.environ["GOOGLE_GEMINI_BASE_URL"] == URL
    assert command.environ["GEMINI_API_BASE"] == f"{URL}/v1beta"
    assert "NO_PROXY" not in command.environ


def test_the_addresses_of_litellm_are_the_users_too(tmp_path: Path) -> None:
    own = {"ANTHROPIC_API_BASE": "http://gate", "GEMINI_API_BASE": "http://g/v1beta"}
    assert agent(tmp_path, "aider", **own).upstreams == {ANTHROPIC: "http://gate", GEMINI: "http://g"}


def test_an_http_proxy_is_not_asked_for_this_machine(tmp_path: Path) -> None:
    environ = agent(tmp_path, "aider", HTTPS_PROXY="http://corp:3128", NO_PROXY="corp").through(PROXY).environ
    assert environ["NO_PROXY"] == environ["no_proxy"] == "corp,127.0.0.1,localhost,::1"


# -- Claude Code ---------------------------------------------------------------------------------------------------


def test_claude_code_gets_variables_alone(tmp_path: Path) -> None:
    found = agent(tmp_path, "claude", "-p", "hi")
    command = found.through(PROXY)
    assert (found.upstreams, command.arguments[1:]) == ({}, ("-p", "hi"))
    assert command.environ["ANTHROPIC_BASE_URL"] == URL


FIRST_PARTY, TOOL_SEARCH = "_CLAUDE_CODE_ASSUME_FIRST_PARTY_BASE_URL", "ENABLE_TOOL_SEARCH"
ATTRIBUTION, HINTS = "CLAUDE_CODE_ATTRIBUTION_HEADER", "CLAUDE_CODE_GATEWAY_HINT_HEADERS"


@pytest.mark.parametrize(
    ("reaches_anthropic", "expected"), [(True, [HINTS, FIRST_PARTY, ATTRIBUTION]), (False, [HINTS, TOOL_SEARCH])]
)
def test_claude_code_gets_the_features_back_that_its_provider_has(
    tmp_path: Path, reaches_anthropic: bool, expected: list[str]
) -> None:
    proxy = RunningProxy(URL, "1.0", reaches_anthropic=reaches_anthropic)
    environ = agent(tmp_path, "claude").through(proxy).environ
    assert sorted({HINTS, FIRST_PARTY, ATTRIBUTION, TOOL_SEARCH} & environ.keys()) == sorted(expected)


def test_variables_of_the_user_are_not_changed(tmp_path: Path) -> None:
    write(tmp_path / ".claude/settings.json", f'{{"env": {{"{HINTS}": "0"}}}}')
    write(tmp_path / "project/.claude/settings.local.json", f'{{"env": {{"{FIRST_PARTY}": "0"}}}}')
    proxy = RunningProxy(URL, "1.0", reaches_anthropic=True)
    environ = agent(tmp_path, "claude", **{ATTRIBUTION: "1"}).through(proxy).environ
    assert environ[ATTRIBUTION] == "1"
    assert not {HINTS, FIRST_PARTY} & environ.keys()


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        (["-p", "hi"], {}),
        (["--settings", '{"model": "m", "env": {"A": "b"}}', "-p", "hi"], {"model": "m"}),
        (['--settings={"model": "m"}', "-p", "hi"], {"model": "m"}),
        (["--settings", "own.json", "-p", "hi"], {"model": "from a file"}),
    ],
)
def test_an_option_overrides_the_users_settings_of_claude_code(
    tmp_path: Path, words: list[str], settings: dict[str, str]
) -> None:
    write(tmp_path / ".claude/settings.json", '{"env": {"ANTHROPIC_BASE_URL": "http://gate"}}')
    write(tmp_path / "project/own.json", '{"model": "from a file"}')
    found = agent(tmp_path, "claude", *words, ANTHROPIC_BASE_URL="http://ignored")
    assert found.upstreams == {ANTHROPIC: "http://gate"}
    option, text, *others = found.through(PROXY).arguments[1:]
    merged = json.loads(text)
    assert (option, others, merged["env"]["ANTHROPIC_BASE_URL"]) == ("--settings", ["-p", "hi"], URL)
    assert settings.items() <= merged.items()


def test_a_project_chooses_no_address_for_the_users_credential(tmp_path: Path) -> None:
    write(tmp_path / "project/.claude/settings.json", '{"env": {"ANTHROPIC_BASE_URL": "http://evil"}}')
    with pytest.raises(AgentError, match="takes no address from a project's file"):
        agent(tmp_path, "claude")
    found = agent(tmp_path, "claude", ANTHROPIC_BASE_URL="http://evil")
    assert found.upstreams == {ANTHROPIC: "http://evil"}
    assert found.through(PROXY).arguments[1] == "--settings"


def test_claude_code_in_a_cloud_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match="CLAUDE_CODE_USE_BEDROCK is set"):
        agent(tmp_path, "claude", CLAUDE_CODE_USE_BEDROCK="1")
    agent(tmp_path, "claude", CLAUDE_CODE_USE_BEDROCK="0")


# -- Codex -----------------------------------------------------------------------------------------------------------


def test_codex_keeps_its_provider(tmp_path: Path) -> None:
    found = agent(tmp_path, "codex", "exec", "hi", printed="Logged in using an API key\n  --no-daemon\n")
    assert found.upstreams == {}
    options = ("-c", f'openai_base_url="{URL}/v1"', "--no-daemon", "exec", "hi")
    assert found.through(PROXY).arguments[1:] == options


def test_codex_with_an_api_key_says_that_it_asks_for_no_list_of_models(tmp_path: Path) -> None:
    found = agent(tmp_path, "codex")
    found.through(PROXY)
    assert found.notes[0].startswith("With an API key Codex asks for no list of models through a proxy")
    write(tmp_path / ".codex/config.toml", '[model_providers.openai]\nmodel_catalog_url = "https://chatgpt.com/m"')
    found = agent(tmp_path, "codex")
    found.through(PROXY)
    assert found.notes == []


def test_an_older_codex_gets_no_option_that_it_does_not_know(tmp_path: Path) -> None:
    assert "--no-daemon" not in agent(tmp_path, "codex", printed="Usage").through(PROXY).arguments


class ConfiguredProxy(RunningProxy, frozen=True):
    """A proxy whose settings have a window of 64,000 tokens for the model `mine`."""

    def find_configured_window(self, model: str, credentials: Mapping[str, str]) -> int:
        return 64_000 if model == "mine" and credentials == {"authorization": "Bearer k"} else 0


@pytest.mark.parametrize(
    ("words", "config", "is_given"),
    [
        (["-m", "mine"], "", True),
        (["exec", "--model=mine"], "", True),
        ([], 'model = "mine"', True),
        ([], 'model = "other"', False),
        ([], "", False),
        (["-m", "mine", "-c", "model_context_window=9"], "", False),
        (["-m", "mine"], "model_context_window = 9", False),
    ],
)
def test_codex_gets_the_window_of_the_settings(tmp_path: Path, words: list[str], config: str, is_given: bool) -> None:
    write(tmp_path / ".codex/config.toml", config)
    command = agent(tmp_path, "codex", *words, CODEX_API_KEY="k").through(ConfiguredProxy(URL, "1.0"))
    assert ("model_context_window=64000" in command.arguments) is is_given
    assert ("model_auto_compact_token_limit=57600" in command.arguments) is is_given


def test_a_limit_that_the_user_has_set_stays(tmp_path: Path) -> None:
    write(tmp_path / ".codex/config.toml", "model_auto_compact_token_limit = 9")
    command = agent(tmp_path, "codex", "-m", "mine", CODEX_API_KEY="k").through(ConfiguredProxy(URL, "1.0"))
    assert "model_context_window=64000" in command.arguments
    assert "model_auto_compact_token_limit" not in " ".join(command.arguments)


async def test_a_proxy_is_asked_for_the_windows_of_its_settings() -> None:
    models = [
        {"model": "mine", "window_source": "config", "limits": {"window": 64_000}},
        {"model": "known", "window_source": "table", "limits": {"window": 9}},
    ]
    async with Loopback(replies_json({"models": models})) as server:
        proxy = RunningProxy(server.url, "1.0")
        found = [await asyncio.to_thread(proxy.find_configured_window, name, {}) for name in ("mine", "known", "no")]
    assert found == [64_000, 0, 0]
    assert await asyncio.to_thread(proxy.find_configured_window, "mine", {}) == 0


def test_requests_with_a_chatgpt_login_go_where_codex_sends_them(tmp_path: Path) -> None:
    login = "Logged in using ChatGPT\n"
    chatgpt = {OPENAI: "https://chatgpt.com/backend-api/codex", "summaries.writer": "extractive"}
    found = agent(tmp_path, "codex", printed=login)
    assert found.upstreams == chatgpt
    assert f'openai_base_url="{URL}/backend-api/codex"' in found.through(PROXY).arguments
    assert found.notes == []
    assert agent(tmp_path, "codex", printed=login, CODEX_API_KEY="k").upstreams == {}


def test_the_provider_of_codex_is_read_from_its_config_and_profile(tmp_path: Path) -> None:
    write(tmp_path / ".codex/config.toml", 'openai_base_url = "http://gate/v1"\n')
    assert agent(tmp_path, "codex").upstreams == {OPENAI: "http://gate/v1"}
    write(
        tmp_path / ".codex/work.config.toml",
        'model_provider = "own"\n[model_providers.own]\nbase_url = "http://own/v1"\n',
    )
    found = agent(tmp_path, "codex", "-p", "work")
    assert found.upstreams == {OPENAI: "http://own/v1"}
    assert f'model_providers.own.base_url="{URL}/v1"' in found.through(PROXY).arguments


@pytest.mark.parametrize(
    ("words", "config", "message"),
    [
        (["-c", "openai_base_url=http://x"], "", "the option -c openai_base_url"),
        (["exec", "--config=model_providers.x.base_url='y'"], "", "the option -c model_providers"),
        (["--oss"], "", "codex --oss"),
        ([], 'model_provider = "ollama"', "provider ollama has no base_url"),
        ([], "model = ", "cannot read .*config.toml"),
    ],
)
def test_codex_that_cannot_be_routed_is_refused(tmp_path: Path, words: list[str], config: str, message: str) -> None:
    write(tmp_path / ".codex/config.toml", config)
    with pytest.raises(AgentError, match=message):
        agent(tmp_path, "codex", *words)


# -- OpenCode ----------------------------------------------------------------------------------------------------------


def content(found: Agent) -> dict[str, str]:
    """Returns the address of each provider in the configuration that OpenCode gets."""
    config = json.loads(found.through(PROXY).environ["OPENCODE_CONFIG_CONTENT"])
    return {name: entry["options"]["baseURL"] for name, entry in config["provider"].items() if "options" in entry}


def test_opencode_with_a_chatgpt_login_gets_a_path_that_it_does_not_replace(tmp_path: Path) -> None:
    write(tmp_path / ".local/share/opencode/auth.json", '{"openai": {"type": "oauth", "access": "t"}}')
    found = agent(tmp_path, "opencode", printed="{}")
    assert found.upstreams == {OPENAI: "https://chatgpt.com/backend-api/codex", "summaries.writer": "extractive"}
    providers = json.loads(found.through(PROXY).environ["OPENCODE_CONFIG_CONTENT"])["provider"]
    assert providers["openai"]["options"]["baseURL"] == f"{URL}/backend-api/codex"
    assert providers["anthropic"]["options"]["baseURL"] == f"{URL}/v1"


@pytest.mark.parametrize("text", ['{"openai": {"type": "api", "key": "k"}}', "{}", "[]", "no JSON"])
def test_opencode_without_a_chatgpt_login_uses_openai_s_api(tmp_path: Path, text: str) -> None:
    write(tmp_path / ".local/share/opencode/auth.json", text)
    assert agent(tmp_path, "opencode", printed="{}").upstreams == {}


def test_opencode_gets_both_built_in_providers(tmp_path: Path) -> None:
    found = agent(tmp_path, "opencode", printed="{}")
    assert (found.upstreams, found.notes) == ({}, [])
    assert content(found) == {"openai": f"{URL}/v1", "anthropic": f"{URL}/v1"}


def test_the_provider_of_the_chosen_model_comes_first(tmp_path: Path) -> None:
    provider = {
        "one": {"npm": "@ai-sdk/openai-compatible", "options": {"baseURL": "http://one/v1"}},
        "two": {"npm": "@ai-sdk/openai-compatible", "options": {"baseURL": "http://two/v1"}},
    }
    printed = json.dumps({"model": "one/m", "provider": provider})
    found = agent(tmp_path, "opencode", printed=printed)
    assert found.upstreams == {OPENAI: "http://one/v1"}
    assert content(found) == {"one": f"{URL}/v1", "anthropic": f"{URL}/v1"}
    assert found.notes == ["These providers of OpenCode do not go through Accordion: two."]
    assert agent(tmp_path, "opencode", "run", "--model", "two/m", printed=printed).upstreams == {
        OPENAI: "http://two/v1"
    }


def test_a_provider_without_an_address_is_named(tmp_path: Path) -> None:
    (note,) = agent(tmp_path, "opencode", printed='{"model": "openrouter/m"}').notes
    assert note.startswith("OpenCode's provider openrouter does not go through Accordion")


def test_the_users_own_content_stays(tmp_path: Path) -> None:
    own = '{"model": "openai/m", "provider": {"openai": {"options": {"apiKey": "k"}}}}'
    config = json.loads(
        agent(tmp_path, "opencode", OPENCODE_CONFIG_CONTENT=own).through(PROXY).environ["OPENCODE_CONFIG_CONTENT"]
    )
    assert config["model"] == "openai/m"
    assert config["provider"]["openai"]["options"] == {"apiKey": "k", "baseURL": f"{URL}/v1"}
    with pytest.raises(AgentError, match="OPENCODE_CONFIG_CONTENT is set"):
        agent(tmp_path, "opencode", OPENCODE_CONFIG_CONTENT="[").through(PROXY)


# -- Gemini CLI ----------------------------------------------------------------------------------------------------


GEMINI_SETTINGS = '// mine\n{"security": {"auth": {"selectedType": "%s"}}}'


def test_gemini_cli_gets_its_address_and_is_told_of_its_login(tmp_path: Path) -> None:
    found = agent(tmp_path, "gemini", "-p", "hi", GEMINI_API_KEY="k")
    command = found.through(PROXY)
    assert (found.upstreams, found.client, command.arguments[1:]) == ({}, "gemini-cli", ("-p", "hi"))
    assert command.environ["GOOGLE_GEMINI_BASE_URL"] == URL
    assert command.environ["GEMINI_DEFAULT_AUTH_TYPE"] == "gemini-api-key"
    (note,) = found.notes
    assert '"selectedType": "gemini-api-key"' in note
    assert str(tmp_path / ".gemini" / "settings.json") in note


def test_gemini_cli_keeps_what_its_user_has_set(tmp_path: Path) -> None:
    write(tmp_path / ".gemini" / "settings.json", GEMINI_SETTINGS % "gemini-api-key")
    found = agent(tmp_path, "gemini", GOOGLE_GEMINI_BASE_URL="http://gate", GEMINI_DEFAULT_AUTH_TYPE="mine")
    environ = found.through(PROXY).environ
    assert (found.upstreams, found.notes) == ({GEMINI: "http://gate"}, [])
    assert (environ["GOOGLE_GEMINI_BASE_URL"], environ["GEMINI_DEFAULT_AUTH_TYPE"]) == (URL, "mine")


@pytest.mark.parametrize("login", ["oauth-personal", "vertex-ai", ""])
def test_gemini_cli_with_another_login_is_refused(tmp_path: Path, login: str) -> None:
    environ = {} if login else {"GOOGLE_GENAI_USE_GCA": "true"}
    if login:
        write(tmp_path / ".gemini" / "settings.json", GEMINI_SETTINGS % login)
    with pytest.raises(AgentError, match=r"passes no proxy\. To use an API key, set GEMINI_API_KEY"):
        agent(tmp_path, "gemini", **environ)


# -- pi ------------------------------------------------------------------------------------------------------------


def extension(found: Agent) -> dict[str, str]:
    """Returns the address of each provider in the extension that pi gets."""
    option, file, *_ = found.through(PROXY).arguments[1:]
    assert option == "-e"
    return dict(re.findall(r'registerProvider\("(.+)", \{ baseUrl: "(.+)" \}\)', Path(file).read_text()))


def test_pi_gets_an_extension_with_the_address_of_each_provider(tmp_path: Path) -> None:
    found = agent(tmp_path, "pi", "-p", "hi")
    assert extension(found) == {"anthropic": URL, "openai": f"{URL}/v1", "google": f"{URL}/v1beta"}
    assert (found.upstreams, found.notes, found.through(PROXY).arguments[3:]) == ({}, [], ("-p", "hi"))


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        (["--provider", "openai-codex"], ""),
        (["--model", "openai-codex/gpt-5"], ""),
        ([], '{"defaultProvider": "openai-codex"}'),
    ],
)
def test_pi_with_a_chatgpt_login_sends_its_requests_to_chatgpt(tmp_path: Path, words: list[str], settings: str) -> None:
    write(tmp_path / ".pi/agent/auth.json", '{"openai-codex": {"type": "oauth"}}')
    write(tmp_path / ".pi/agent/settings.json", settings)
    found = agent(tmp_path, "pi", *words)
    assert found.upstreams == {OPENAI: "https://chatgpt.com/backend-api/codex", "summaries.writer": "extractive"}
    assert extension(found)["openai-codex"] == f"{URL}/backend-api/codex"
    assert "openai" not in extension(found)


def test_the_providers_of_pi_are_read_from_its_models(tmp_path: Path) -> None:
    providers = {
        "mine": {"api": "openai-completions", "baseUrl": "http://one/v1", "models": [{"id": "m"}]},
        "other": {"api": "openai-completions", "baseUrl": "http://two/v1", "models": [{"id": "m"}]},
        "google": {"baseUrl": "http://three/v1beta"},
    }
    write(tmp_path / ".pi/agent/models.json", json.dumps({"providers": providers}))
    found = agent(tmp_path, "pi", "--model", "mine/m")
    assert found.upstreams == {OPENAI: "http://one/v1", GEMINI: "http://three"}
    assert extension(found) == {"mine": f"{URL}/v1", "anthropic": URL, "google": f"{URL}/v1beta"}
    assert found.notes == ["These providers of pi do not go through Accordion: other."]
    (note, *_) = agent(tmp_path, "pi", "--provider", "groq").notes
    assert note.startswith("pi's provider groq does not go through Accordion")


def test_models_of_pi_with_addresses_of_their_own_keep_them(tmp_path: Path) -> None:
    models = [{"id": "m", "baseUrl": "http://one/v1"}]
    write(tmp_path / ".pi/agent/models.json", json.dumps({"providers": {"openai": {"models": models}}}))
    found = agent(tmp_path, "pi", "--provider", "openai")
    assert extension(found) == {"anthropic": URL, "google": f"{URL}/v1beta"}
    assert "provider openai does not go through Accordion" in found.notes[0]


# -- Qwen Code -----------------------------------------------------------------------------------------------------


ALIBABA = "https://dashscope-intl.aliyuncs.com/compatible-mode/v1"
QWEN_MODELS = {
    "openai": [
        {"id": "qwen3-coder-plus", "envKey": "KEY", "baseUrl": ALIBABA},
        {"id": "other", "baseUrl": "http://other/v1"},
        {"id": "plain"},
    ]
}


def qwen_settings(**settings: object) -> str:
    return json.dumps({"security": {"auth": {"selectedType": "openai"}}, **settings})


def test_qwen_code_keeps_the_features_of_alibabas_hosts(tmp_path: Path) -> None:
    write(tmp_path / ".qwen/.env", f'export OPENAI_BASE_URL="{ALIBABA}"\n')
    found = agent(tmp_path, "qwen", "hi")
    environ = found.through(PROXY).environ
    assert (found.upstreams, found.notes) == ({OPENAI: ALIBABA}, [])
    assert environ["OPENAI_BASE_URL"] == environ["DASHSCOPE_PROXY_BASE_URL"] == f"{URL}/v1"
    assert environ["ANTHROPIC_BASE_URL"] == environ["GOOGLE_GEMINI_BASE_URL"] == URL


def test_qwen_code_with_openais_api_says_what_stays_lost(tmp_path: Path) -> None:
    found = agent(tmp_path, "qwen")
    assert "DASHSCOPE_PROXY_BASE_URL" not in found.through(PROXY).environ
    assert found.notes == ["Qwen Code sends OpenAI's API no key of a prompt cache through a proxy."]


def test_models_of_qwen_code_get_the_address_in_a_file_of_the_run(tmp_path: Path) -> None:
    write(tmp_path / "system.json", '{"ui": {"theme": "dark"}}')
    write(tmp_path / ".qwen/settings.json", qwen_settings(modelProviders=QWEN_MODELS, model={"name": "other"}))
    system = {"QWEN_CODE_SYSTEM_SETTINGS_PATH": str(tmp_path / "system.json")}
    found = agent(tmp_path, "qwen", "-m", "qwen3-coder-plus", **system)
    assert found.upstreams == {OPENAI: ALIBABA}
    written = json.loads(Path(found.through(PROXY).environ["QWEN_CODE_SYSTEM_SETTINGS_PATH"]).read_text())
    assert written["ui"] == {"theme": "dark"}
    models = {entry["id"]: entry.get("baseUrl") for entry in written["modelProviders"]["openai"]}
    assert models == {"qwen3-coder-plus": f"{URL}/v1", "other": "http://other/v1", "plain": None}
    assert found.notes == ["These providers of Qwen Code do not go through Accordion: openai http://other/v1."]
    assert agent(tmp_path, "qwen", **system).upstreams == {OPENAI: "http://other/v1"}


@pytest.mark.parametrize(
    ("words", "user", "project", "message"),
    [
        (["--openai-base-url", "http://x"], "", "", "the option --openai-base-url"),
        (["--auth-type", "qwen-oauth"], "", "", "login is qwen-oauth"),
        (["--auth-type=anthropic"], "", "", "as a bearer token, which Anthropic's API refuses"),
        ([], "", '{"modelProviders": {}}', "takes no address from a project's file"),
        ([], "", '{"security": {"auth": {"baseUrl": "http://evil"}}}', "takes no address from a project's file"),
    ],
)
def test_qwen_code_that_cannot_be_routed_is_refused(
    tmp_path: Path, words: list[str], user: str, project: str, message: str
) -> None:
    write(tmp_path / ".qwen/settings.json", user)
    write(tmp_path / "project/.qwen/settings.json", project)
    with pytest.raises(AgentError, match=message):
        agent(tmp_path, "qwen", *words)


def test_a_variable_chooses_the_provider_of_qwen_code(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match="as a bearer token"):
        agent(tmp_path, "qwen", ANTHROPIC_MODEL="claude")
    agent(tmp_path, "qwen", ANTHROPIC_MODEL="claude", OPENAI_MODEL="m")


def test_qwen_code_with_anthropics_protocol_of_another_provider_is_routed(tmp_path: Path) -> None:
    found = agent(tmp_path, "qwen", "--auth-type", "anthropic", ANTHROPIC_BASE_URL="http://gate")
    assert (found.upstreams, found.through(PROXY).environ["ANTHROPIC_BASE_URL"]) == ({ANTHROPIC: "http://gate"}, URL)


# -- what agents leave out -----------------------------------------------------------------------------------------


CODEX_PROVIDER = """
model_provider = "mine"
[model_providers.mine]
name = "%s"
base_url = "http://127.0.0.1:8787/v1"
supports_websockets = %s
"""


def test_claude_code_behind_an_address_names_the_variables_that_it_lacks(tmp_path: Path) -> None:
    assert [*agent(tmp_path, "claude").find_losses()] == []
    assert [*agent(tmp_path, "claude", ANTHROPIC_BASE_URL="https://api.anthropic.com").find_losses()] == []
    own = {"ANTHROPIC_BASE_URL": "https://user:password@gateway.example/v1", "ENABLE_TOOL_SEARCH": "true"}
    (loss,) = agent(tmp_path, "claude", **own).find_losses()
    assert loss.startswith("ANTHROPIC_BASE_URL names gateway.example: ")
    assert "CLAUDE_CODE_GATEWAY_HINT_HEADERS" in loss
    assert "ENABLE_TOOL_SEARCH" not in loss


@pytest.mark.parametrize(
    ("name", "sockets", "count"), [("OpenAI", "true", 0), ("OpenAI", "false", 1), ("x", "false", 2)]
)
def test_a_provider_of_codex_names_what_it_costs(tmp_path: Path, name: str, sockets: str, count: int) -> None:
    write(tmp_path / ".codex" / "config.toml", CODEX_PROVIDER % (name, sockets))
    assert len([*agent(tmp_path, "codex").find_losses()]) == count


def test_models_of_opencode_without_a_window_are_named(tmp_path: Path) -> None:
    models = {"known": {"limit": {"context": 9, "output": 9}}, "unknown": {}}
    config = {"provider": {"mine": {"npm": "@ai-sdk/openai", "options": {"baseURL": URL}, "models": models}}}
    (loss,) = agent(tmp_path, "opencode", printed=json.dumps(config)).find_losses()
    assert loss == "the provider mine has no `limit` for unknown: OpenCode assumes no window"


def test_qwen_code_behind_an_address_names_the_variable_that_it_lacks(tmp_path: Path) -> None:
    own = {"OPENAI_BASE_URL": f"{URL}/v1"}
    (loss,) = agent(tmp_path, "qwen", **own).find_losses()
    assert "DASHSCOPE_PROXY_BASE_URL" in loss
    assert [*agent(tmp_path, "qwen", **own, DASHSCOPE_PROXY_BASE_URL=f"{URL}/v1").find_losses()] == []
    assert [*agent(tmp_path, "qwen").find_losses()] == []


def test_gemini_cli_without_a_login_names_the_setting(tmp_path: Path) -> None:
    assert len([*agent(tmp_path, "gemini", GOOGLE_GEMINI_BASE_URL=URL).find_losses()]) == 1
    assert [*agent(tmp_path, "gemini").find_losses()] == []

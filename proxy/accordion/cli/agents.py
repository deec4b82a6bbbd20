"""Points agents at a proxy: Claude Code, Codex, OpenCode, Gemini CLI, pi, Qwen Code, and any other command.

Only environment variables, command-line options and files of the run are used, so that no file of the user changes.
`find_losses` says what an agent leaves out that its user points at a proxy without `accordion run`. An agent may
already send its requests to a provider other than the default one, by its own settings. The proxy then has to send
them there: `Agent.upstreams` has that address as a setting of the proxy.
"""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from accordion.cli.installation import own_command, see
from accordion.cli.running_proxy import RunningProxy
from accordion.http.path_prefix import CODEX_PATH

OPENAI, ANTHROPIC = "upstreams.openai.base_url", "upstreams.anthropic.base_url"
GEMINI = "upstreams.gemini.base_url"
UPSTREAMS = (OPENAI, ANTHROPIC, GEMINI)
"""The keys of the default upstreams' addresses."""
_ANTHROPIC, _OPENAI = "https://api.anthropic.com", "https://api.openai.com"
_GOOGLE_LOGIN = "GOOGLE_GENAI_USE_GCA"
_COMMENT = re.compile(rb"^\s*//.*$", re.MULTILINE)
_ALIBABA = re.compile(r"(.+\.)?(dashscope(-intl|-us)?|maas)\.aliyuncs\.com")
_WINDOW_KEY, _LIMIT_KEY = "model_context_window", "model_auto_compact_token_limit"
_COMPACTION_SHARE = 0.9
"""The share of a window at which Codex compacts by itself, if its catalog says nothing of the model."""
_OUTPUT_SECONDS = 30.0
_PROXY_VARIABLES = ("http_proxy", "https_proxy", "all_proxy")


class AgentError(Exception):
    """An agent cannot be run through a proxy; the message says why, and what to do. `status` is the exit code."""

    def __init__(self, message: str, status: int = 2) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class AgentCommand:
    """A command line with its environment, and the folder that it starts in; `files` is for files of this run."""

    arguments: tuple[str, ...]
    environ: Mapping[str, str]
    folder: Path
    files: Path | None = None

    @property
    def program(self) -> str:
        """The path of the program."""
        return self.arguments[0]

    def home(self, variable: str, name: str) -> Path:
        """Returns the folder of an agent's own files: that of an environment variable, else `name` in the home."""
        folder = self.environ.get(variable)
        return Path(folder) if folder else Path(self.environ.get("HOME") or "~").expanduser() / name

    def with_options(self, *options: str) -> AgentCommand:
        """Returns the command with options before its other arguments."""
        return replace(self, arguments=(self.program, *options, *self.arguments[1:]))

    def with_variables(self, **variables: str) -> AgentCommand:
        """Returns the command with more environment variables."""
        return replace(self, environ={**self.environ, **variables})

    def write(self, name: str, text: str) -> str:
        """Writes a file of this run, and returns its path."""
        if self.files is None:
            raise ValueError("a command that is not run has no files")
        (self.files / name).write_text(text)
        return str(self.files / name)

    def values(self, *options: str) -> list[str]:
        """Returns the values of options: `-c V`, `-cV` or `--config V`, `--config=V`."""
        return [value for option in options for value in _option_values(self.arguments[1:], option)]


_CHATGPT = {OPENAI: f"https://chatgpt.com{CODEX_PATH}", "summaries.writer": "extractive"}
"""Settings for requests with a ChatGPT login: their address, and no request of Accordion's own with such a login."""


_GOOGLE_PATH = "/v1beta"
"""The version, which some clients take for a part of the address of Google's API."""
_VARIABLES: Mapping[str, tuple[str, str]] = {
    "OPENAI_BASE_URL": (OPENAI, "/v1"),
    "OPENAI_API_BASE": (OPENAI, "/v1"),
    "ANTHROPIC_BASE_URL": (ANTHROPIC, ""),
    "ANTHROPIC_API_BASE": (ANTHROPIC, ""),
    "GOOGLE_GEMINI_BASE_URL": (GEMINI, ""),
    "GEMINI_API_BASE": (GEMINI, _GOOGLE_PATH),
}
"""The variables of the official SDKs, then of LiteLLM: the upstream, and the path behind the proxy's address."""


class Agent:
    """An agent's command that is to run through a proxy. This class knows no agent: it is for any other command."""

    name, client, install = "", "", ""
    """The name for people, the client's name in the records of sessions (empty if every session counts), and the
    command that installs it."""
    opens_websockets = False
    """Whether it opens WebSockets, which the proxy must not relay unread."""

    def __init__(self, command: AgentCommand) -> None:
        """Reads the agent's own settings. Raises AgentError if its requests cannot be sent through a proxy."""
        self.command = command
        self.upstreams: dict[str, str] = {}
        """Settings of the proxy that this agent needs, by their dotted keys."""
        self.notes: list[str] = []
        """Sentences about requests that do not go through the proxy."""
        self._read()

    def _read(self) -> None:
        for name, (upstream, _) in _VARIABLES.items():
            if url := self.command.environ.get(name):
                self.upstreams.setdefault(upstream, url.removesuffix(_GOOGLE_PATH))

    def through(self, proxy: RunningProxy) -> AgentCommand:
        """Returns the command with all that it needs to use a proxy."""
        return self._point(_reach_loopback(self.command), proxy)

    def find_losses(self) -> Iterator[str]:
        """Yields sentences about features that the agent leaves out in its present configuration."""
        yield from ()

    def _point(self, command: AgentCommand, proxy: RunningProxy) -> AgentCommand:
        return command.with_variables(**{name: f"{proxy.url}{path}" for name, (_, path) in _VARIABLES.items()})


class ClaudeCode(Agent):
    """Claude Code. `env` in its settings overrides the environment, so that an option has to override `env`.

    Behind an address that is not Anthropic's it leaves out some features. Where requests do go to Anthropic's own API,
    it may assume that address; elsewhere it gets at least its search for tools.
    """

    name, client, install = "Claude Code", "claude-code", "npm install -g @anthropic-ai/claude-code"
    _CLOUDS = (
        "CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX", "CLAUDE_CODE_USE_FOUNDRY", "CLAUDE_CODE_USE_MANTLE",
    )  # fmt: skip
    _HINTS: Mapping[str, str] = {"CLAUDE_CODE_GATEWAY_HINT_HEADERS": "1"}
    """It sends the class of each request, such as a compaction."""
    _AT_ANTHROPIC: Mapping[str, str] = {
        "_CLAUDE_CODE_ASSUME_FIRST_PARTY_BASE_URL": "1",
        # Else a random value in its system prompt keeps the provider's cache from being used.
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
    }
    _ELSEWHERE: Mapping[str, str] = {"ENABLE_TOOL_SEARCH": "true"}

    def _read(self) -> None:
        environ, folder = self.command.environ, self.command.folder
        home = self.command.home("CLAUDE_CONFIG_DIR", ".claude")
        user = _read_variables(home / "settings.json")
        own = user.get("ANTHROPIC_BASE_URL") or environ.get("ANTHROPIC_BASE_URL", "")
        self._own_variables: set[str] = {*environ, *user}
        self._has_setting = "ANTHROPIC_BASE_URL" in user
        for file in (folder / ".claude" / "settings.json", folder / ".claude" / "settings.local.json"):
            url = _read_variables(file).get("ANTHROPIC_BASE_URL", own)
            if url != own:
                # A project that somebody else wrote must not choose who receives the user's credential.
                raise AgentError(
                    f"{file} sets ANTHROPIC_BASE_URL to {url}. Accordion takes no address from a project's file. "
                    f"To send requests there, set the variable yourself: "
                    f"ANTHROPIC_BASE_URL={url} {own_command('run claude')}"
                )
            self._own_variables.update(_read_variables(file))
            self._has_setting |= "ANTHROPIC_BASE_URL" in _read_variables(file)
        for variable in self._CLOUDS:
            if _is_on({**environ, **user}.get(variable, "")):
                raise AgentError(
                    f"{variable} is set: Claude Code then sends its requests to that cloud by itself, not to a proxy. "
                    "Unset it, or run claude without Accordion."
                )
        if own:
            self.upstreams[ANTHROPIC] = own

    def find_losses(self) -> Iterator[str]:
        """Yields what Claude Code leaves out behind an address that is not Anthropic's."""
        host = _host(self.upstreams.get(ANTHROPIC, _ANTHROPIC))
        missing = sorted({**self._HINTS, **self._AT_ANTHROPIC, **self._ELSEWHERE}.keys() - self._own_variables)
        if host != _host(_ANTHROPIC) and missing:
            yield (
                f"ANTHROPIC_BASE_URL names {host}: Claude Code does not say what a request is for; older versions "
                f"assume a window of 200,000 tokens and send all tools with each request. Not set: {', '.join(missing)}"
            )

    def _point(self, command: AgentCommand, proxy: RunningProxy) -> AgentCommand:
        features = {**self._HINTS, **(self._AT_ANTHROPIC if proxy.reaches_anthropic else self._ELSEWHERE)}
        for name in self._own_variables & set(features):
            del features[name]
        self.notes.append("Claude Code's Remote Control does not work through a proxy.")
        command = command.with_variables(ANTHROPIC_BASE_URL=proxy.url, **features)
        return _add_claude_setting(command, proxy.url) if self._has_setting else command


class Codex(Agent):
    """Codex. It keeps its provider, so that its record of sessions does; only the provider's address changes."""

    name, client, install = "Codex", "codex", "npm install -g @openai/codex"
    opens_websockets = True
    _OWN_CHOICES = ("model_provider", "model_providers", "openai_base_url")

    def _read(self) -> None:
        arguments = self.command.arguments[1:]
        for option in ("--oss", "--remote"):
            if option in arguments:
                raise AgentError(f"codex {option} sends no request to a provider; run codex without Accordion.")
        for value in self.command.values("-c", "--config"):
            if (key := value.partition("=")[0].partition(".")[0].strip()) in self._OWN_CHOICES:
                raise AgentError(
                    f"the option -c {key} chooses the provider, and so does Accordion. Put it into config.toml: "
                    "Accordion reads it there, and sends requests to that provider."
                )
        self._config = config = self._read_config()
        self._model = str(next(iter(self.command.values("-m", "--model")), "") or config.get("model") or "")
        self._provider = str(config.get("model_provider", "openai"))
        own: object = config.get("openai_base_url")
        self._entry: Mapping[str, object] = config.get("model_providers", {}).get(self._provider, {})
        if self._provider != "openai":
            own = self._entry.get("base_url")
            if not isinstance(own, str):
                raise AgentError(
                    f"Codex's provider {self._provider} has no base_url in config.toml, so that Accordion cannot stand "
                    "between Codex and it."
                )
        if isinstance(own, str):
            self.upstreams[OPENAI] = own
        elif self._provider == "openai" and self._has_chatgpt_login():
            self.upstreams |= _CHATGPT

    def find_losses(self) -> Iterator[str]:
        """Yields what Codex leaves out with a provider that is not its own."""
        name, entry = self._provider, self._entry
        if name != "openai" and entry.get("name") != "OpenAI":
            yield f"the provider {name} has another name than `OpenAI`: no web search, no compaction by the provider"
        if name != "openai" and not entry.get("supports_websockets"):
            yield f"the provider {name} has no `supports_websockets = true`: no WebSocket"

    def _read_config(self) -> dict[str, Any]:
        """Reads config.toml with the profile that the arguments name on top of it."""
        home = self.command.home("CODEX_HOME", ".codex")
        files = [home / "config.toml"]
        files += [home / f"{name}.config.toml" for name in self.command.values("-p", "--profile")]
        config: dict[str, Any] = {}
        for file in files:
            try:
                config = _merge(config, tomllib.loads(file.read_text()))
            except FileNotFoundError:
                continue
            except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
                raise AgentError(f"cannot read {file}: {error}") from None
        return config

    def _has_chatgpt_login(self) -> bool:
        return not self.command.environ.get("CODEX_API_KEY") and "ChatGPT" in _output(self.command, "login", "status")

    def _point(self, command: AgentCommand, proxy: RunningProxy) -> AgentCommand:
        key = "openai_base_url" if self._provider == "openai" else f"model_providers.{self._provider}.base_url"
        # Some of its features exist behind the path of a ChatGPT login alone.
        path = CODEX_PATH if self.upstreams.get(OPENAI, "").endswith(CODEX_PATH) else "/v1"
        if self._provider == "openai" and path != CODEX_PATH and not self._entry.get("model_catalog_url"):
            page = see("docs/clients.md#codex")
            self.notes.append(
                f"With an API key Codex asks for no list of models through a proxy; it has its own.{page}"
            )
        options = ["-c", f'{key}="{proxy.url}{path}"']
        for setting in self._find_window(proxy):
            options += ["-c", setting]
        # A server that already runs in the background would use another provider.
        if "--no-daemon" in _output(command, "--help"):
            options.append("--no-daemon")
        return command.with_options(*options)

    def _find_window(self, proxy: RunningProxy) -> list[str]:
        """Returns settings with the window that the proxy's settings have for the model; empty if the user has set one.

        Codex's own compaction then comes after Accordion's, and its display is right.
        """
        own = {*self._config, *(value.partition("=")[0].strip() for value in self.command.values("-c", "--config"))}
        if not self._model or _WINDOW_KEY in own:
            return []
        key = self.command.environ.get("CODEX_API_KEY") or self.command.environ.get("OPENAI_API_KEY")
        window = proxy.find_configured_window(self._model, {"authorization": f"Bearer {key}"} if key else {})
        values = {_WINDOW_KEY: window, _LIMIT_KEY: int(window * _COMPACTION_SHARE)} if window else {}
        return [f"{name}={value}" for name, value in values.items() if name not in own]


class ProviderAgent(Agent):
    """An agent with several providers in its configuration. Those of one family share one address: the proxy's."""

    _where = ""
    """Where a provider's address is set, for people."""
    _OWN_PROVIDERS: tuple[str, ...] = ()
    """The providers that the agent brings along; a provider of the user's comes before them."""

    def _route(self, addresses: Mapping[str, tuple[str, str]], chosen: str) -> None:
        """Chooses the providers that go through the proxy, and the address of each family.

        `addresses` has the family and the configured address of each provider; empty for its default one.
        """
        self._routed: list[str] = []
        # The chosen model's provider first: all providers of one family share its address.
        for provider in sorted(addresses, key=lambda each: (each != chosen, each in self._OWN_PROVIDERS)):
            family, address = addresses[provider]
            if self.upstreams.setdefault(family, address) == address:
                self._routed.append(provider)
        self.upstreams = {family: address for family, address in self.upstreams.items() if address}
        if self.upstreams.get(OPENAI) == _CHATGPT[OPENAI]:
            self.upstreams |= _CHATGPT
        if chosen and chosen not in self._routed:
            self.notes.append(
                f"{self.name}'s provider {chosen} does not go through Accordion: its configuration names no address. "
                f"Set {self._where} of this provider to the address of its API.{see(self._page)}"
            )
        skipped = [each for each in addresses if addresses[each][1] and each not in self._routed]
        if skipped:
            self.notes.append(f"These providers of {self.name} do not go through Accordion: {', '.join(skipped)}.")

    @property
    def _page(self) -> str:
        return f"docs/run-an-agent.md#{self.name.lower().replace(' ', '-')}"


class OpenCode(ProviderAgent):
    """OpenCode. Its configuration is merged from several files; it prints the result."""

    name, client, install = "OpenCode", "opencode", "npm install -g opencode-ai"
    _where = "options.baseURL"
    _OWN_PROVIDERS = ("openai", "anthropic")
    _FAMILIES: Mapping[str, str] = {
        "@ai-sdk/openai": OPENAI,
        "@ai-sdk/openai-compatible": OPENAI,
        "openai": OPENAI,
        "@ai-sdk/anthropic": ANTHROPIC,
        "anthropic": ANTHROPIC,
    }
    """The proxy's upstream for packages and built-in providers."""

    def _read(self) -> None:
        try:
            config = msgspec.json.decode(_output(self.command, "debug", "config"))
        except msgspec.DecodeError:
            config = {}
        config = config if isinstance(config, dict) else {}
        self._providers: Mapping[str, Any] = config.get("provider") or {}
        model = next(iter(self.command.values("-m", "--model")), "") or str(config.get("model") or "")
        self._route(self._read_addresses(config), model.partition("/")[0])

    def find_losses(self) -> Iterator[str]:
        """Yields the models of which OpenCode knows no window."""
        for provider, entry in self._providers.items():
            models = entry.get("models") or {}
            unknown = [name for name, model in models.items() if not ((model or {}).get("limit") or {}).get("context")]
            if provider not in self._FAMILIES and unknown:
                yield f"the provider {provider} has no `limit` for {', '.join(unknown)}: OpenCode assumes no window"

    def _read_addresses(self, config: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
        """Returns the family and the configured address of each provider; empty for a built-in one's own address."""
        addresses = {"openai": (OPENAI, self._read_chatgpt_address()), "anthropic": (ANTHROPIC, "")}
        for provider, entry in (config.get("provider") or {}).items():
            family = self._FAMILIES.get(entry.get("npm") or provider)
            address = (entry.get("options") or {}).get("baseURL")
            if family and isinstance(address, str):
                addresses[provider] = (family, address)
        return addresses

    def _read_chatgpt_address(self) -> str:
        """Returns the address of requests with a ChatGPT login; empty if there is none."""
        logins = _read_json(self.command.home("XDG_DATA_HOME", ".local/share") / "opencode" / "auth.json")
        return _CHATGPT[OPENAI] if _find(logins, "openai", "type") == "oauth" else ""

    def _point(self, command: AgentCommand, proxy: RunningProxy) -> AgentCommand:
        own = command.environ.get("OPENCODE_CONFIG_CONTENT") or "{}"
        try:
            config = msgspec.json.decode(own, type=dict[str, Any])
        except msgspec.MsgspecError as error:
            raise AgentError(f"OPENCODE_CONFIG_CONTENT is set, and is no JSON object: {error}") from None
        # With a ChatGPT login OpenCode sends what it would send to `/v1/responses` to ChatGPT, whatever its address is.
        has_login = self.upstreams.get(OPENAI) == _CHATGPT[OPENAI]
        paths = {provider: CODEX_PATH if has_login and provider == "openai" else "/v1" for provider in self._routed}
        options = {provider: {"options": {"baseURL": f"{proxy.url}{path}"}} for provider, path in paths.items()}
        merged = _merge(config, {"provider": options})
        return command.with_variables(OPENCODE_CONFIG_CONTENT=_to_json(merged))


class GeminiCli(Agent):
    """Gemini CLI. Behind an address of its own it takes no key from the environment alone: a setting must choose it.

    No variable or option sets that, so that the user has to; its own dialog is preset.
    """

    name, client, install = "Gemini CLI", "gemini-cli", "npm install -g @google/gemini-cli"
    _KEY_LOGIN = "gemini-api-key"
    _PRESET = "GEMINI_DEFAULT_AUTH_TYPE"

    def _read(self) -> None:
        environ = self.command.environ
        file = self.command.home("GEMINI_CLI_HOME", "") / ".gemini" / "settings.json"
        self._login = str(_find(_read_json(file), "security", "auth", "selectedType") or "")
        self._advice = f'{{"security": {{"auth": {{"selectedType": "{self._KEY_LOGIN}"}}}}}} in {file}'
        if self._login not in ("", self._KEY_LOGIN) or (not self._login and _is_on(environ.get(_GOOGLE_LOGIN, ""))):
            raise AgentError(
                f"Gemini CLI's login is {self._login or _GOOGLE_LOGIN}: it then uses an API that passes no proxy. "
                f"To use an API key, set GEMINI_API_KEY, and write {self._advice}."
            )
        if url := environ.get("GOOGLE_GEMINI_BASE_URL"):
            self.upstreams[GEMINI] = url

    def find_losses(self) -> Iterator[str]:
        """Yields that Gemini CLI does not start behind an address without a chosen login."""
        if GEMINI in self.upstreams and not self._login:
            yield f"with GOOGLE_GEMINI_BASE_URL it needs a chosen login: write {self._advice}"

    def _point(self, command: AgentCommand, proxy: RunningProxy) -> AgentCommand:
        if not self._login:
            self.notes.append(
                "Gemini CLI needs a chosen login behind a proxy. Choose `Use Gemini API Key` when it asks. "
                f"If it ends with `Invalid auth method selected`, write {self._advice}."
            )
        preset = {} if command.environ.get(self._PRESET) else {self._PRESET: self._KEY_LOGIN}
        return command.with_variables(GOOGLE_GEMINI_BASE_URL=proxy.url, **preset)


class Pi(ProviderAgent):
    """pi. Neither a variable nor an option of its own sets an address; an extension does, by an option."""

    name, install = "pi", "npm install -g @mariozechner/pi-coding-agent"
    opens_websockets = True
    _where = "baseUrl and api in models.json"
    _OWN_PROVIDERS = ("anthropic", "openai", "google")
    _FAMILIES: Mapping[str, str] = {
        "anthropic-messages": ANTHROPIC,
        "anthropic": ANTHROPIC,
        "openai-responses": OPENAI,
        "openai-completions": OPENAI,
        "openai": OPENAI,
        "google-generative-ai": GEMINI,
        "google": GEMINI,
    }
    """The proxy's upstream for its APIs and built-in providers."""
    _CHATGPT_PROVIDER = "openai-codex"

    def _read(self) -> None:
        home = self.command.home("PI_CODING_AGENT_DIR", ".pi/agent")
        addresses = {provider: (self._FAMILIES[provider], "") for provider in self._OWN_PROVIDERS}
        if _find(_read_json(home / "auth.json"), self._CHATGPT_PROVIDER):
            addresses[self._CHATGPT_PROVIDER] = (OPENAI, _CHATGPT[OPENAI])
        for provider, entry in (_find(_read_json(home / "models.json"), "providers") or {}).items():
            family = self._FAMILIES.get(_find(entry, "api") or provider)
            address = _find(entry, "baseUrl")
            if any(_find(model, "baseUrl") for model in _find(entry, "models") or ()):
                # The extension would replace these addresses, too.
                addresses.pop(provider, None)
            elif family and isinstance(address, str):
                addresses[provider] = (family, address.rstrip("/").removesuffix(_GOOGLE_PATH))
        self._families = {provider: family for provider, (family, _) in addresses.items()}
        model = next(iter(self.command.values("--model")), "")
        options = [*self.command.values("--provider"), model.rpartition("/")[0].partition("/")[0]]
        own = _find(_read_json(home / "settings.json"), "defaultProvider")
        self._route(addresses, next(filter(None, (*options, own)), ""))

    def _point(self, command: AgentCommand, proxy: RunningProxy) -> AgentCommand:
        paths = {OPENAI: "/v1", ANTHROPIC: "", GEMINI: _GOOGLE_PATH}
        calls = ""
        for provider in self._routed:
            is_login = provider == self._CHATGPT_PROVIDER
            url = proxy.url + (CODEX_PATH if is_login else paths[self._families[provider]])
            calls += f"  pi.registerProvider({_to_json(provider)}, {{ baseUrl: {_to_json(url)} }});\n"
        extension = command.write("accordion.ts", f"export default function (pi) {{\n{calls}}}\n")
        return command.with_options("-e", extension)


class QwenCode(ProviderAgent):
    """Qwen Code. Settings name an address for each model; else the environment does.

    At Alibaba's hosts it asks for a prompt cache; a variable names one more such address.
    """

    name, install = "Qwen Code", "npm install -g @qwen-code/qwen-code"
    _where = "baseUrl in modelProviders"
    _ADDRESSES: Mapping[str, str] = {
        "openai": "OPENAI_BASE_URL", "anthropic": "ANTHROPIC_BASE_URL", "gemini": "GOOGLE_GEMINI_BASE_URL",
    }  # fmt: skip
    """The variables with the addresses of its own providers."""
    _OWN_PROVIDERS = tuple(_ADDRESSES)
    _FAMILIES: Mapping[str, str] = {
        "openai": OPENAI, "openai-responses": OPENAI, "anthropic": ANTHROPIC, "gemini": GEMINI,
    }  # fmt: skip
    _MODELS: Mapping[str, str] = {
        "openai": "OPENAI_MODEL", "gemini": "GEMINI_MODEL", "anthropic": "ANTHROPIC_MODEL",
    }  # fmt: skip
    """The variables that choose a provider where no setting does; the first one that is set counts."""
    _ALIBABA_VARIABLE = "DASHSCOPE_PROXY_BASE_URL"
    _SYSTEM = ("QWEN_CODE_SYSTEM_SETTINGS_PATH", "/etc/qwen-code/settings.json")
    """The variable and the default path of the settings that override all others."""

    def _read(self) -> None:
        home, file = self.command.home("QWEN_HOME", ".qwen"), self.command.folder / ".qwen" / "settings.json"
        self._system = _read_json(Path(self.command.environ.get(self._SYSTEM[0]) or self._SYSTEM[1]))
        settings = _merge(_read_json(home / "settings.json"), self._system)
        if self.command.values("--openai-base-url"):
            raise AgentError("the option --openai-base-url chooses the provider. Set OPENAI_BASE_URL in its place.")
        project = _read_json(file) if file.parent != home else {}
        if "modelProviders" in project or _find(project, "security", "auth", "baseUrl"):
            # A project that somebody else wrote must not choose who receives the user's credential.
            raise AgentError(
                f"{file} sets an address. Accordion takes no address from a project's file. To send requests there, "
                f"write it into {home / 'settings.json'}."
            )
        self._models: Mapping[str, list[Any]] = _find(settings, "modelProviders") or {}
        self._protocols: Mapping[str, str] = _find(settings, "providerProtocol") or {}
        own = {**(_find(settings, "env") or {}), **_read_dotenv(home / ".env"), **self.command.environ}
        chosen = self._find_chosen(settings, own)
        addresses = self._read_addresses(own)
        self._route(addresses, chosen)
        address = self.upstreams.get(OPENAI, "")
        is_named = bool(address) and own.get(self._ALIBABA_VARIABLE) == address
        self._is_alibaba = is_named or bool(_ALIBABA.fullmatch(_host(address)))
        self._refuse_bearer_keys(addresses.get(chosen, ("", ""))[0])

    def _find_chosen(self, settings: Mapping[str, Any], own: Mapping[str, str]) -> str:
        """Returns the provider of the chosen model; empty if none is chosen. Raises AgentError."""
        by_variable = next((provider for provider, name in self._MODELS.items() if own.get(name)), "")
        setting = _find(settings, "security", "auth", "selectedType") or by_variable
        kind = next(iter(self.command.values("--auth-type")), setting)
        if kind in ("qwen-oauth", "vertex-ai"):
            raise AgentError(f"Qwen Code's login is {kind}: it uses an API that passes no proxy. Choose another one.")
        configured = _find(settings, "model", "name") or own.get(self._MODELS.get(kind, ""))
        model = next(iter(self.command.values("-m", "--model")), configured)
        for provider, entry in self._list_models():
            if _find(entry, "id") == model and self._find_kind(provider) == kind and _find(entry, "baseUrl"):
                return f"{provider} {entry['baseUrl']}"
        return str(kind)

    def _refuse_bearer_keys(self, family: str) -> None:
        host = _host(self.upstreams.get(ANTHROPIC, _ANTHROPIC))
        if family == ANTHROPIC and host == _host(_ANTHROPIC):
            raise AgentError(
                "through a proxy Qwen Code sends Anthropic's key as a bearer token, which Anthropic's API refuses. "
                "Use a model of another provider, or run qwen without Accordion."
            )

    def _list_models(self) -> Iterator[tuple[str, Any]]:
        """Yields each configured model with the name of its provider."""
        for provider, models in self._models.items():
            yield from ((provider, entry) for entry in (models if isinstance(models, list) else ()))

    def _find_kind(self, provider: str) -> str:
        return self._protocols.get(provider, provider)

    def _read_addresses(self, own: Mapping[str, str]) -> dict[str, tuple[str, str]]:
        """Returns the family and the address of each provider: those of the environment, and those of the models."""
        addresses = {provider: (_VARIABLES[name][0], own.get(name, "")) for provider, name in self._ADDRESSES.items()}
        for provider, entry in self._list_models():
            family, address = self._FAMILIES.get(self._find_kind(provider)), _find(entry, "baseUrl")
            if family and isinstance(address, str):
                addresses[f"{provider} {address}"] = (family, address)
        return addresses

    def find_losses(self) -> Iterator[str]:
        """Yields that Qwen Code asks Alibaba's models for no prompt cache behind an address of this machine."""
        address = self.upstreams.get(OPENAI, "")
        if _host(address) in ("127.0.0.1", "localhost") and not self._is_alibaba:
            yield (
                f"its address is one of this machine: without the same in {self._ALIBABA_VARIABLE}, it asks Alibaba's "
                "models for no prompt cache"
            )

    def _point(self, command: AgentCommand, proxy: RunningProxy) -> AgentCommand:
        urls = {OPENAI: f"{proxy.url}/v1", ANTHROPIC: proxy.url, GEMINI: proxy.url}
        variables = {name: urls[_VARIABLES[name][0]] for name in self._ADDRESSES.values()}
        if self._is_alibaba:
            variables[self._ALIBABA_VARIABLE] = urls[OPENAI]
        elif _host(self.upstreams.get(OPENAI, _OPENAI)) == _host(_OPENAI):
            self.notes.append("Qwen Code sends OpenAI's API no key of a prompt cache through a proxy.")
        if self._models:
            models: dict[str, list[Any]] = {provider: [] for provider in self._models}
            for provider, entry in self._list_models():
                is_routed = f"{provider} {_find(entry, 'baseUrl')}" in self._routed
                address = {"baseUrl": urls[self._FAMILIES[self._find_kind(provider)]]} if is_routed else {}
                models[provider].append({**entry, **address} if address else entry)
            text = _to_json({**self._system, "modelProviders": models})
            variables[self._SYSTEM[0]] = command.write("qwen-settings.json", text)
        return command.with_variables(**variables)


AGENTS: Mapping[str, type[Agent]] = {
    "claude": ClaudeCode,
    "codex": Codex,
    "opencode": OpenCode,
    "gemini": GeminiCli,
    "pi": Pi,
    "qwen": QwenCode,
}
"""The known agents, by the names of their programs."""


def find_agent(command: AgentCommand) -> Agent:
    """Returns the agent of a command, known by the name of its program. Raises AgentError."""
    return AGENTS.get(Path(command.program).name, Agent)(command)


def _reach_loopback(command: AgentCommand) -> AgentCommand:
    """Excepts this machine from the HTTP proxy that the environment names, if it names one."""
    environ = command.environ
    if not any(value and name.lower() in _PROXY_VARIABLES for name, value in environ.items()):
        return command
    hosts = ",".join(filter(None, (environ.get("NO_PROXY") or environ.get("no_proxy"), "127.0.0.1,localhost,::1")))
    return command.with_variables(NO_PROXY=hosts, no_proxy=hosts)


def origin(url: str) -> str:
    """Returns scheme, host and port of a URL."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _output(command: AgentCommand, *arguments: str) -> str:
    """Returns what the agent's program prints for other arguments; empty if it cannot be run."""
    try:
        done = subprocess.run(  # noqa: S603  # the program that the user wants to run
            (command.program, *arguments), env=dict(command.environ), cwd=command.folder, capture_output=True,
            stdin=subprocess.DEVNULL, timeout=_OUTPUT_SECONDS, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (done.stdout or done.stderr).decode(errors="replace")


def _option_values(arguments: Sequence[str], option: str) -> list[str]:
    """Returns the values of an option: `-c V`, `-cV` or `--config V`, `--config=V`."""
    values: list[str] = []
    for index, argument in enumerate(arguments):
        if argument == "--":
            break
        if argument == option:
            values += arguments[index + 1 : index + 2]
        elif argument.startswith(f"{option}=" if option.startswith("--") else option):
            values.append(argument.removeprefix(option).removeprefix("="))
    return values


def _read_variables(file: Path) -> dict[str, str]:
    """Returns `env` of a settings file of Claude Code; empty if there is none that can be read."""
    variables = _find(_read_json(file), "env")
    items = variables.items() if isinstance(variables, dict) else ()
    return {name: value for name, value in items if isinstance(value, str)}


def _read_dotenv(file: Path) -> dict[str, str]:
    """Returns the variables of a file of lines NAME=VALUE; empty if there is none that can be read."""
    try:
        lines = [line.removeprefix("export ").partition("=") for line in file.read_text().splitlines()]
    except (OSError, UnicodeDecodeError):
        return {}
    return {name.strip(): value.strip().strip("\"'") for name, _, value in lines}


def _read_json(file: Path) -> dict[str, Any]:
    """Returns the object in a JSON file, without lines of comments; empty if there is none that can be read."""
    try:
        return msgspec.json.decode(_COMMENT.sub(b"", file.read_bytes()), type=dict[str, Any])
    except (OSError, msgspec.MsgspecError):
        return {}


def _find(value: Any, *names: str) -> Any:
    """Returns what is at a path of names in a JSON value; None if there is nothing."""
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _to_json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _host(url: str) -> str:
    return urlsplit(url).hostname or ""


def _add_claude_setting(command: AgentCommand, url: str) -> AgentCommand:
    """Adds `--settings` with the proxy's address, to the user's own `--settings` where there is one: the last counts.

    Raises AgentError if the user's own settings cannot be read.
    """
    arguments, own = list(command.arguments), ""
    for index, argument in enumerate(command.arguments):
        if argument == "--":
            break
        if argument == "--settings" and index + 1 < len(arguments):
            own, arguments[index : index + 2] = arguments[index + 1], []
            break
        if argument.startswith("--settings="):
            own, arguments[index : index + 1] = argument.removeprefix("--settings="), []
            break
    try:
        text = own if own.lstrip().startswith("{") or not own else (command.folder / own).read_text()
        settings = msgspec.json.decode(text or "{}", type=dict[str, Any])
    except (OSError, UnicodeDecodeError, msgspec.MsgspecError) as error:
        raise AgentError(f"the settings of the option --settings cannot be read: {error}") from None
    merged = _to_json(_merge(settings, {"env": {"ANTHROPIC_BASE_URL": url}}))
    return replace(command, arguments=tuple(arguments)).with_options("--settings", merged)


def _is_on(value: str) -> bool:
    return value.strip().lower() in ("1", "true", "yes", "on")


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Returns two trees of settings as one; `above` has precedence."""
    merged = dict(below)
    for key, value in above.items():
        before = merged.get(key)
        merged[key] = _merge(before, value) if isinstance(before, dict) and isinstance(value, dict) else value
    return merged

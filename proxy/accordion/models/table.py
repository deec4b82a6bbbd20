"""LiteLLM's model table, read from its package data without importing litellm: what it says of a model id.

Only input and output limits of models that converse are kept (about 1 MB of memory; 4 ms to read).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec

from accordion.models.tokens import package_file

TABLE_FILE = "model_prices_and_context_window_backup.json"
MODES = ("chat", "completion", "responses")
LABS = (
    "openai",
    "anthropic",
    "gemini",
    "xai",
    "deepseek",
    "mistral",
    "moonshot",
    "zai",
    "minimax",
    "dashscope",
    "cohere",
    "vertex_ai",
    "azure",
    "azure_ai",
    "bedrock",
)
"""Prefixes under which a model's own maker lists it, then those of clouds that serve it unchanged."""

LONGEST_ID = 256

Figures = tuple[int, int]
"""Input limit and output limit in tokens, as the table has them; 0 where it says nothing."""

_LAB_DOT = re.compile(r"^(?:[a-z][a-z-]*\.)+(?=[a-z])")  # us.anthropic.claude-…
_BEDROCK = re.compile(r"-v\d+:\d+$|(?<=\d)-v\d$")  # …-v1:0
_VARIANT = re.compile(r":(?:free|beta|thinking|nitro|floor|extended|online|exacto|latest)$|\[1m\]$")
_SUFFIX = re.compile(
    r"-(?:20\d\d-?[01]\d-?[0-3]\d|[0-3]\d-20\d\d|\d{4}|0[1-9]-[0-3]\d|\d{6}|latest|default|preview|exp|maas|think|thinking"
    r"|fast|minimal|low|medium|high|xhigh)$"
)


class _Row(msgspec.Struct):
    max_input_tokens: int | float | str | None = None
    max_output_tokens: int | float | str | None = None
    mode: str | None = None


class ModelTable:
    """The table, read when it is first asked; empty where litellm's data is missing or has another form."""

    def __init__(self) -> None:
        self._rows: dict[str, Figures] | None = None
        self._aliases: dict[str, Figures] | None = None

    def rows(self) -> dict[str, Figures]:
        """Every conversing model with a known input limit, by its id."""
        if self._rows is None:
            self._rows = _read()
        return self._rows

    def find(self, model: str) -> Figures | None:
        """What is known of `model`: by the exact id, then without its provider prefix, then by its longest known name.

        Dates, variants (`:free`, `[1m]`), `@` for `-`, `4.5` for `4-5`, fine-tunes (`ft:base:org::id`) and Bedrock's
        forms lead to the same name. Of several entries for one name the maker's own wins, then the most common.
        """
        if len(model) > LONGEST_ID:
            return None
        rows = self.rows()
        for shorter in _without_prefixes(model):
            if shorter in rows:
                return rows[shorter]
        if self._aliases is None:
            self._aliases = _index(rows)
        for name in names(model):
            if name in self._aliases:
                return self._aliases[name]
        return None


def names(model: str) -> Iterator[str]:
    """The names that a model id goes by, the longest first, in one spelling: `claude-sonnet-4-5`."""
    name = model.lower().strip().rsplit("/", 1)[-1]
    name = _VARIANT.sub("", name)
    if name.startswith("ft:"):
        name = name.split(":")[1]
    name = _BEDROCK.sub("", _LAB_DOT.sub("", name))
    name = name.replace("@", "-").replace(":", "-").replace(".", "-")
    while name:
        yield name
        shorter = _SUFFIX.sub("", name)
        if shorter == name:
            return
        name = shorter


def _without_prefixes(model: str) -> Iterator[str]:
    yield model
    while "/" in model:
        model = model.split("/", 1)[1]
        yield model


def _read() -> dict[str, Figures]:
    file = package_file(TABLE_FILE)
    if file is None:
        return {}
    try:
        decoded = msgspec.json.decode(file.read_bytes(), type=dict[str, _Row])
    except (OSError, msgspec.DecodeError):
        return {}
    shared: dict[Figures, Figures] = {}
    rows = {}
    for model, row in decoded.items():
        figures = (_tokens(row.max_input_tokens), _tokens(row.max_output_tokens))
        if row.mode in MODES and figures[0] > 0:
            rows[model] = shared.setdefault(figures, figures)
    return rows


def _tokens(value: float | str | None) -> int:
    return int(value) if isinstance(value, int | float) and value > 0 else 0


def _index(rows: dict[str, Figures]) -> dict[str, Figures]:
    """Names to figures. A name that an entry bears in full goes before one that its date was cut from."""
    ranked: dict[str, tuple[int, list[Figures]]] = {}
    for model, figures in rows.items():
        rank = _rank(model)
        for cut, name in enumerate(names(model)):
            place = rank + cut * (len(LABS) + 2)
            best = ranked.get(name)
            if best is None or place < best[0]:
                ranked[name] = (place, [figures])
            elif place == best[0]:
                best[1].append(figures)
    return {name: _most_common(found) for name, (_, found) in ranked.items()}


def _rank(model: str) -> int:
    """How near an entry is to the model's maker: 0 for a bare id, then the makers' prefixes, clouds, all others."""
    prefix, slash, _ = model.partition("/")
    if not slash:
        return len(LABS) if _LAB_DOT.match(model) else 0
    return 1 + LABS.index(prefix) if prefix in LABS else len(LABS) + 1


def _most_common(found: Iterable[Figures]) -> Figures:
    counts = Counter(found)
    return min(counts, key=lambda figures: (-counts[figures], figures))

"""LiteLLM's model table: token limits by model id. An extract of it is in `data/` (scripts/build_model_data.py).

An installed litellm is not asked, so that a version of Accordion knows the same windows and prices everywhere. Only the
input and output limits are loaded here (about 1 MB of memory; 4 ms to read), the prices in prices.py.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from importlib.resources import files
from typing import Any, Generic, TypeVar

import msgspec

DATA = files("accordion.providers.models") / "data"
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
"""Provider prefixes in order of preference: the makers of models, then clouds that serve them unchanged."""

LONGEST_ID = 256

Version = tuple[int, ...]

LimitPair = tuple[int, int]
"""Input limit and output limit in tokens, as in the table; 0 if the table has none."""

Row = TypeVar("Row", bound=tuple[Any, ...])

_LAB_DOT = re.compile(r"^(?:[a-z][a-z-]*\.)+(?=[a-z])")  # us.anthropic.claude-…
_BEDROCK = re.compile(r"-v\d+:\d+$|(?<=\d)-v\d$")  # …-v1:0
_VARIANT = re.compile(r":(?:free|beta|thinking|nitro|floor|extended|online|exacto|latest)$|\[1m\]$")
_SUFFIX = re.compile(
    r"-(?:20\d\d-?[01]\d-?[0-3]\d|[0-3]\d-20\d\d|\d{4}|0[1-9]-[0-3]\d|\d{6}|latest|default|preview|exp|maas|think|thinking"
    r"|fast|minimal|low|medium|high|xhigh)$"
)


_VERSION = re.compile(r"(?<![0-9])\d{1,2}(?:-\d{1,2})*(?![0-9a-z]|-\d)")
"""The first number of a name that is no size (`70b`), date or count."""


class _TableRow(msgspec.Struct):
    max_input_tokens: int = 0
    max_output_tokens: int = 0


class NamedRows(Generic[Row]):
    """Rows of the table by model ids. `read` reads them at first use; rows are hashable and can be compared."""

    def __init__(self, read: Callable[[], dict[str, Row]]) -> None:
        self._read = read
        self._rows: dict[str, Row] | None = None
        self._aliases: dict[str, Row] | None = None

    def rows(self) -> dict[str, Row]:
        """Returns the row of every model, by its id."""
        if self._rows is None:
            self._rows = self._read()
        return self._rows

    def find(self, model: str) -> Row | None:
        """Returns the row of `model`: by its id, then without provider prefixes, then by its longest known name.

        Names ignore dates, variants (`:free`, `[1m]`), `@` for `-`, `4.5` for `4-5`, fine-tunes (`ft:base:org::id`) and
        Bedrock's forms. If several entries have one name, the maker's own wins, then the most common.
        """
        if len(model) > LONGEST_ID:
            return None
        rows = self.rows()
        for shorter_name in _without_prefixes(model):
            if shorter_name in rows:
                return rows[shorter_name]
        if self._aliases is None:
            self._aliases = _index(rows)
        for name in candidate_names(model):
            if name in self._aliases:
                return self._aliases[name]
        return None


class ModelTable(NamedRows[LimitPair]):
    """The limits of every conversational model with a known input limit."""

    def __init__(self) -> None:
        super().__init__(_read_limits)
        self._families: dict[str, dict[Version, LimitPair]] | None = None

    def find_nearest(self, model: str) -> LimitPair | None:
        """Returns the limits of the nearest version of a model that the table does not have, such as those of
        `gpt-5.2-codex` for `gpt-5.9-codex`: the last version before it, else the first one after it."""
        if len(model) > LONGEST_ID:
            return None
        if self._families is None:
            self._families = {}
            for known, limits in self.rows().items():
                name = next(candidate_names(known), "")
                if _rank(known) <= len(LABS) and (version := _VERSION.search(name)):
                    self._families.setdefault(_family_of(name), {}).setdefault(_read_version(version), limits)
        for name in candidate_names(model):
            versions = self._families.get(_family_of(name))
            if versions and (version := _VERSION.search(name)):
                own = _read_version(version)
                earlier = max((each for each in versions if each <= own), default=None)
                return versions[earlier if earlier is not None else min(versions)]
        return None


def candidate_names(model: str) -> Iterator[str]:
    """Yields the names of a model id, the longest first, in one spelling: `claude-sonnet-4-5`."""
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


def _family_of(name: str) -> str:
    """Returns a name without its version: `gpt-*-codex`."""
    return _VERSION.sub("*", name, count=1)


def _read_version(match: re.Match[str]) -> Version:
    return tuple(map(int, match.group().split("-")))


def _without_prefixes(model: str) -> Iterator[str]:
    yield model
    while "/" in model:
        model = model.split("/", 1)[1]
        yield model


def _read_limits() -> dict[str, LimitPair]:
    decoded = msgspec.json.decode((DATA / "models.json").read_bytes(), type=dict[str, _TableRow])
    distinct_limits: dict[LimitPair, LimitPair] = {}
    rows = {}
    for model, row in decoded.items():
        limits = (row.max_input_tokens, row.max_output_tokens)
        if limits[0] > 0:
            rows[model] = distinct_limits.setdefault(limits, limits)
    return rows


def _index(rows: dict[str, Row]) -> dict[str, Row]:
    """Maps names to rows. An entry's full name counts more than one from which its date was removed."""
    best_by_name: dict[str, tuple[int, list[Row]]] = {}
    for model, row in rows.items():
        rank = _rank(model)
        for cut_count, name in enumerate(candidate_names(model)):
            distance = rank + cut_count * (len(LABS) + 2)
            current = best_by_name.get(name)
            if current is None or distance < current[0]:
                best_by_name[name] = (distance, [row])
            elif distance == current[0]:
                current[1].append(row)
    return {name: _most_common(candidates) for name, (_, candidates) in best_by_name.items()}


def _rank(model: str) -> int:
    """How near an entry is to the model's maker: 0 for a bare id, then the makers' prefixes, clouds, all others."""
    prefix, slash, _ = model.partition("/")
    if not slash:
        return len(LABS) if _LAB_DOT.match(model) else 0
    return 1 + LABS.index(prefix) if prefix in LABS else len(LABS) + 1


def _most_common(candidates: Iterable[Row]) -> Row:
    counts = Counter(candidates)
    return min(counts, key=lambda row: (-counts[row], row))

"""config.yaml documents every key in place, and nothing that there is not."""

import re
from pathlib import Path
from typing import Any, get_args

import msgspec
import yaml

from accordion.compaction.strategies import STRATEGIES
from accordion.config import ENVIRONMENT, RESTART, Settings, load
from accordion.config.load import build
from accordion.config.pipelines import PipelineEntry
from accordion.config.thresholds import ThresholdShares
from accordion.config.value_types import Keys, Secret

FILE = Path(__file__).parents[1] / "config.yaml"
# `#` before anything but a single space is an example that is commented out; `# ` begins a sentence.
EXAMPLE = re.compile(r"^#(?=\S|  )", re.MULTILINE)
# Keys of one value whose default is an empty one.
EMPTY = ("generation", "hard", "conversation_target", "generation_target", "tenant_key", "api_key", "spool")
EMPTY += ("max_body_bytes", "max_images", "key")
FREE = {"smart", "x-team", "api_version"}
# The same keys again, for which it says so; an example of some is enough.
AGAIN = re.compile(r"thresholds\.(?:delegated|models|models\.delegated)\.(\w+)")


def with_examples() -> str:
    return EXAMPLE.sub("", FILE.read_text("utf-8"))


def keys_of(kind: Any) -> set[str]:
    """The dotted keys of a Struct and of all below it; lists and free names add nothing of their own.

    Below `pipeline` are all strategies, and their options.
    """
    if kind is PipelineEntry:
        options = {name: keys_of(each.options_type) for name, each in STRATEGIES.items()}
        return set(STRATEGIES) | {f"{name}.{key}" for name, keys in options.items() for key in keys}
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        found = set()
        for field in msgspec.structs.fields(kind):
            if field.name != "options":
                found |= {field.name} | {f"{field.name}.{key}" for key in keys_of(field.type)}
        return found
    return {key for part in get_args(kind) for key in keys_of(part)}


def keys_in(tree: Any) -> set[str]:
    if isinstance(tree, list):
        return {key for entry in tree for key in keys_in(entry)}
    if not isinstance(tree, dict):
        return {tree} & set(STRATEGIES) if isinstance(tree, str) else set()
    found = set()
    for name, below in tree.items():
        if name in FREE:
            found |= keys_in(below)
        else:
            found |= {name} | {f"{name}.{key}" for key in keys_in(below)}
    return found


def test_the_shipped_values_are_the_defaults():
    assert load(FILE, {}) == Settings()


def unstated(section: msgspec.Struct, stated: dict[str, Any]) -> list[str]:
    """The fields whose default the file does not write out."""
    found = []
    for field in msgspec.structs.fields(section):
        default, said = getattr(section, field.name), stated.get(field.name)
        if isinstance(default, msgspec.Struct):
            found += unstated(default, said or {})
        elif field.name == "pipeline" and default is not None:
            found += [
                path for entry, strategy in zip(said, default, strict=True) for path in unstated_in(entry, strategy)
            ]
        elif said is None and default not in (None, (), {}, Secret(), Keys()):
            found.append(field.name)
    return found


def unstated_in(entry: Any, strategy: PipelineEntry) -> list[str]:
    """The options of a strategy whose default the file does not write out."""
    stated = entry[strategy.name] if isinstance(entry, dict) else {}
    return [f"{strategy.name}.{name}" for name in unstated(strategy.options, stated or {})]


def test_the_shipped_file_states_every_default():
    """An empty key has its default, so comparing values alone would not notice one that is not written out."""
    assert unstated(Settings(), yaml.safe_load(FILE.read_text("utf-8"))) == []


def test_every_key_is_documented_and_every_documented_key_exists():
    written, known = keys_in(yaml.safe_load(with_examples())), keys_of(Settings)
    assert written - known == set()
    shares = set(ThresholdShares.__struct_fields__)
    again = {key for key in known - written if (match := AGAIN.fullmatch(key)) and match[1] in shares}
    # A strategy is documented where it stands first, for all pipelines.
    again |= {
        key for key in known - written if re.match(r"compaction\.(models|delegated|models\.delegated)\.pipeline\.", key)
    }
    assert known - written == again


def test_every_key_has_a_sentence_of_its_own():
    lines = with_examples().splitlines()
    for number, line in enumerate(lines):
        key = re.match(r"\s*(?:- )?([\w-]+):(.*)", line)
        if not key or line.lstrip().startswith("#"):
            continue
        holds_sections = not key[2].strip() and lines[number + 1].strip() and key[1] not in EMPTY
        documented = lines[number - 1].lstrip().startswith("# ")
        assert documented or holds_sections, f"line {number + 1}: `{key[1]}` has no comment"


def test_the_examples_are_valid_settings():
    settings = build(with_examples().encode(), {"RESEARCH_PROXY_KEY": "acc-research"}, {})
    assert [model.model_name for model in settings.model_list] == ["smart"]
    assert [key.id for key in settings.proxy_keys] == ["research"]
    assert settings.thresholds.thresholds_for("smart").hard == 0.9
    assert settings.thresholds.thresholds_for("smart", delegated=True).generation_target == 0.2
    assert settings.compaction.mode_of("smart") == "observe"
    assert settings.compaction.mode_of("smart", delegated=True) == "auto"
    assert settings.budgets.of("smart", "openai").max_images == 50
    assert settings.model_list[0].entry().options == (("api_version", "2024-10-21"),)


def test_the_environment_names_stand_at_their_keys():
    text = FILE.read_text("utf-8")
    mentioned = set(re.findall(r"ACCORDION_[A-Z_]+", text))
    assert mentioned == {*ENVIRONMENT, "ACCORDION_CONFIG", "ACCORDION_LOG"}
    for name, key in ENVIRONMENT.items():
        assert key.split(".")[-1] + ":" in text[text.index(name) :].splitlines()[1], name


def test_the_keys_that_need_a_restart_are_marked():
    marked, section, comment = set(), "", ""
    for line in FILE.read_text("utf-8").splitlines():
        if line.lstrip().startswith("#"):
            comment += line
            continue
        if line and not line.startswith(" "):
            section = line.partition(":")[0]
        elif line and " (restart)" in comment:
            marked.add(f"{section}.{line.strip().partition(':')[0]}")
        comment = ""
    assert marked == set(RESTART)

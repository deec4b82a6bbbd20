"""What the documentation says there is, there is; what there is, it says."""

import re
from pathlib import Path
from typing import Any, get_args

import pytest
import typer
from msgspec.structs import fields

from accordion.archive.archive_entries import Kind
from accordion.cli.main import app
from accordion.compaction.reporting import describe_outcome
from accordion.config import ENVIRONMENT, Settings
from accordion.config.load import build
from accordion.features.memory.memory_operations import CALLS
from accordion.http.metrics import Metrics
from accordion.model.records import CompactionOutcome, FailureKind, ToolLoopUsage, Totals
from scripts.reference import own_routes
from tests.test_config_documentation import keys_of

ROOT = Path(__file__).parents[2]
HEADER = re.compile(r"x-accordion-[a-z]+(?:-[a-z]+)*", re.IGNORECASE)
VARIABLE = re.compile(r"\bACCORDION_[A-Z_]+\b")
OWN_PATH = re.compile(r"(?<![\w.-])/(?:accordion/(?:[\w/{}-]*[\w}])?|(?:healthz|readyz|metrics)\b)")
# `accordion serve --port 1` in code, also behind a path or a prompt; not "Accordion is".
CALL = re.compile(r"(?:^|[`$/\s])(?<!from )accordion((?: +(?:--?[\w-]+|[\w./<>-]+))+)", re.MULTILINE)
METRIC = re.compile(r"\baccordion_[a-z_]+\b")
_LINES = ("name", "exchange", "artifact", "row", "end")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")


def read(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def documents() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.fixture(scope="module")
def text() -> str:
    """README and docs."""
    return "\n".join(path.read_text("utf-8") for path in documents())


@pytest.fixture(scope="module")
def commands() -> dict[str, set[str]]:
    """Each command's long options."""
    group: Any = typer.main.get_command(app)
    return {name: options(command) for name, command in group.commands.items()}


def options(command: Any) -> set[str]:
    """The long options of a command, or of all commands of a group."""
    own = {option for param in command.params for option in param.opts if option.startswith("--")}
    return own.union(*(options(each) for each in getattr(command, "commands", {}).values()))


def code(text: str) -> str:
    """What stands in code spans and blocks."""
    return "\n".join(re.findall(r"```.*?```|`[^`\n]+`", text, re.DOTALL))


def headers_in_code(*parts: str) -> set[str]:
    """The names of our headers in some modules and folders of the package, or in all of it."""
    found: set[str] = set()
    places = [ROOT / "proxy" / "accordion" / part for part in parts or ("",)]
    for path in (file for place in places for file in ([place] if place.suffix else place.rglob("*.py"))):
        found |= {name.lower() for name in re.findall(r'b?"(x-accordion-[a-z-]*[a-z])"', path.read_text("utf-8"))}
    return found


def headers_in_rows(text: str) -> set[str]:
    """Our headers in the first column of a table."""
    return {name for row in re.findall(r"^\| (`[^|]+) \|", text, re.MULTILINE) for name in HEADER.findall(row)}


def answered() -> set[tuple[str, str]]:
    """The methods and paths of our own."""
    return {(method, route.path) for route in own_routes() for method in route.methods}


def paths() -> set[str]:
    return {path.removesuffix(".json") for _, path in answered()} - {"/"}


def test_the_headers_are_the_documented_ones(text: str):
    assert {name.lower() for name in HEADER.findall(text)} == headers_in_code()


def test_each_table_of_headers_has_the_headers_of_its_direction():
    page = read("docs/api.md")
    requests = headers_in_code("sessions", "delegation", "compaction")
    assert headers_in_rows(section(page, "## Request headers\n")) == requests
    assert headers_in_rows(section(page, "## Response headers\n")) == headers_in_code("pipeline/respond.py")
    assert headers_in_code("http/archive_api.py") <= set(HEADER.findall(read("docs/archive.md")))


def test_the_examples_of_settings_are_valid():
    # The example of write-a-strategy.md needs a package; tests/test_public_api.py installs it and runs the example.
    paths = [path for path in documents() if path.name != "write-a-strategy.md"]
    examples = [part for path in paths for part in re.findall(r"```yaml\n(.*?)```", path.read_text("utf-8"), re.DOTALL)]
    examples += [span for path in paths for span in re.findall(r"`(\w+: \{[^`…]+\})`", path.read_text("utf-8"))]
    assert len(examples) > 10
    for example in examples:
        settings = build(example.encode(), {"ADMIN_KEY": "a-long-enough-key", "RESEARCH_PROXY_KEY": "acc-research"}, {})
        assert settings.compaction.mode in ("auto", "observe", "off"), example


def test_no_example_has_a_proxy_key_that_every_reader_knows():
    for path in [*documents(), ROOT / "config.yaml"]:
        known = re.findall(r"\bkey: \$\{\w+:-[^}]+\}|admin_key: \$\{\w+:-[^}]+\}", path.read_text("utf-8"))
        assert known == [], path.name


def test_every_setting_that_the_documents_name_exists():
    sections = set(Settings.__struct_fields__)
    known = keys_of(Settings)
    for path in documents():
        for name in re.findall(r"`((?:\w+\.)+\w+)`", path.read_text("utf-8")):
            if name.split(".")[0] in sections and not name.endswith(".py"):
                assert name in known, f"{path.name}: {name}"


def test_the_readme_is_short_and_leads_to_every_page():
    lines = read("README.md").splitlines()
    assert len(lines) <= 110
    assert max(map(len, lines)) <= 120
    linked = set(re.findall(r"\]\((docs/\w[\w-]*\.md)", "\n".join(lines)))
    assert linked == {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")}


def test_the_variables_are_the_documented_ones(text: str):
    assert set(VARIABLE.findall(text)) == {*ENVIRONMENT, "ACCORDION_CONFIG", "ACCORDION_LOG"}


def test_the_config_file_names_the_same_variables():
    assert set(VARIABLE.findall((ROOT / "config.yaml").read_text("utf-8"))) == {
        *ENVIRONMENT,
        "ACCORDION_CONFIG",
        "ACCORDION_LOG",
    }


def test_the_paths_of_our_own_are_the_documented_ones(text: str):
    # The views below the page are for browsers, which follow its links. One path is that of an example of a feature.
    own = {path for path in OWN_PATH.findall(text) if not path.startswith("/accordion/pages")}
    assert own - {"/accordion/failures"} == paths()


def test_the_methods_of_our_own_paths_are_the_documented_ones():
    tables = (ROOT / "docs" / "api.md").read_text("utf-8") + (ROOT / "docs" / "memory.md").read_text("utf-8")
    rows = re.findall(r"^\| (`[^|]*/accordion/[^|]*) \|", tables, re.MULTILINE)
    told = {(method, OWN_PATH.findall(row)[0]) for row in rows for method in re.findall(r"\b[A-Z]+\b", row)}
    own = {(method, path.removesuffix(".json")) for method, path in answered() if method != "HEAD"}
    assert told == {each for each in own if each[1].startswith("/accordion/")}


def section(text: str, heading: str) -> str:
    return text.partition(heading)[2].partition("\n## ")[0]


def test_the_parameters_and_lines_of_the_archive_are_the_documented_ones(text: str):
    rows = re.findall(r"^\| (`[^|]+) \|", section(text, "## Artifacts\n"), re.MULTILINE)
    told = {name for row in rows for name in re.findall(r"`(\w+)`", row)} | {"session", "after"}
    read = (ROOT / "proxy" / "accordion" / "http" / "archive_api.py").read_text("utf-8")
    assert told == set(re.findall(r'params\.get\("(\w+)"', read))
    rows = re.findall(r"^\| (`[^|]+) \|", section(text, "## Export\n"), re.MULTILINE)
    # What somebody read is listed so that it stays; all of it is given out with what it is of.
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == {*get_args(Kind), *_LINES} - {"read"}


def test_the_metrics_are_the_documented_ones(text: str):
    page = Metrics().render()[0].decode()
    kinds = dict(re.findall(r"^# TYPE (\w+) (\w+)$", page, re.MULTILINE))
    assert set(METRIC.findall(code(text))) == {name for name in kinds if not name.endswith("_created")}


def test_the_names_of_failures_are_the_documented_ones(text: str):
    row = next(line for line in text.splitlines() if "`accordion_compaction_failures_total`" in line)
    assert set(row.partition(" made: ")[2].removesuffix(" |").split(", ")) == set(get_args(FailureKind))


def test_the_fields_of_a_compactions_record_are_the_documented_ones(text: str):
    section = text.partition("## The record of a compaction")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]+) \|", section, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == set(
        describe_outcome(CompactionOutcome("compacted"))
    )


def test_the_sums_and_what_was_read_back_are_the_documented_ones(text: str):
    sums = section(text, "## Totals\n")
    assert set(Totals.__struct_fields__) == set(re.findall(r"`([a-z_]+)`", sums)) - {"totals"}
    rows = re.findall(r"^\| `(\w+)` \|", section(text, "## Reading back\n"), re.MULTILINE)
    assert set(rows) == {each.name for each in fields(ToolLoopUsage)}


def test_every_command_is_documented_and_every_documented_one_exists(text: str, commands: dict[str, set[str]]):
    called = {words.split()[0] for words in CALL.findall(code(text))}
    assert {word for word in called if re.fullmatch("[a-z]+", word)} == set(commands)


def test_every_command_and_every_tool_of_the_memories_is_documented(text: str):
    group: Any = typer.main.get_command(app)
    called = re.findall(r"\baccordion memory ([a-z]+)", code(text))
    assert set(called) == set(group.commands["memory"].commands)
    rows = re.findall(r"^\| `(\w+)` \|", section(text, "## Agents: MCP\n"), re.MULTILINE)
    assert set(rows) == {call.name for call in CALLS if call.tool}


def test_every_documented_option_exists(text: str, commands: dict[str, set[str]]):
    for words in CALL.findall(code(text)):
        name = words.split()[0]
        # What follows the agent is the agent's own.
        own = re.split(r" (?:claude|codex|opencode|--)(?: |$)", words)[0] if name == "run" else words
        if name in commands:
            assert set(OPTION.findall(own)) <= commands[name] | {"--help"}, words


def test_every_option_is_documented_where_its_command_is(commands: dict[str, set[str]]):
    told = (ROOT / "docs" / "cli.md").read_text("utf-8")
    # The commands of memories have a document of their own.
    memory = (ROOT / "docs" / "memory.md").read_text("utf-8")
    for name, known in commands.items():
        where = memory if name in ("memory", "mcp") else section(told, f"## accordion {name}")
        assert known <= set(OPTION.findall(code(where))), name


def test_every_option_of_the_memory_commands_is_documented():
    group: Any = typer.main.get_command(app)
    people = section((ROOT / "docs" / "memory.md").read_text("utf-8"), "## People: the command line\n")
    for_all = OPTION.findall(code(people.rpartition("\n|")[2]))
    for name, command in group.commands["memory"].commands.items():
        (row,) = (line for line in people.splitlines() if f"`accordion memory {name}" in line)
        assert options(command) <= {*for_all, *OPTION.findall(row)}, name


def test_the_make_targets_that_are_named_exist(text: str):
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z]+)\b", code(text + (ROOT / "CONTRIBUTING.md").read_text("utf-8"))))
    assert {"serve", "test"} <= named
    assert named <= targets


def anchors(path: Path) -> set[str]:
    """What the headings of a document are linked by."""
    heads = re.findall(r"^#+ (.+)$", path.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


def test_links_between_the_documents_lead_somewhere():
    for path in [*documents(), *sorted((ROOT / "docs" / "adr").glob("*.md"))]:
        for target, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)]*)\)", path.read_text("utf-8")):
            if "://" not in target:
                there = path.parent / target if target else path
                assert there.exists(), f"{path.name}: {target}"
                assert not anchor or anchor in anchors(there), f"{path.name}: {target}#{anchor}"


def test_the_layers_of_the_tour_are_those_that_are_enforced():
    shown = section((ROOT / "docs" / "tour.md").read_text("utf-8"), "## Layers\n").split("```")[1]
    told = [floor.strip() for line in shown.splitlines() for floor in re.split(r" {3,}", line)[0].split(">")]
    held = (ROOT / ".importlinter").read_text("utf-8").partition("layers =\n")[2].partition("\n\n")[0]
    assert [floor for floor in told if floor] == [floor.strip() for floor in held.splitlines()]


def test_the_version_command_prints_the_version():
    from typer.testing import CliRunner

    from accordion import __version__

    assert CliRunner().invoke(app, ["version"]).output.strip() == __version__


def test_check_says_what_a_config_would_do_and_what_is_wrong_with_one(tmp_path: Path):
    from typer.testing import CliRunner

    good = CliRunner().invoke(app, ["check", str(ROOT / "config.yaml")])
    assert good.exit_code == 0
    assert "127.0.0.1:8787" in good.output
    assert "https://api.anthropic.com" in good.output
    (tmp_path / "bad.yaml").write_text("server: {prot: 1}\n")
    bad = CliRunner().invoke(app, ["check", str(tmp_path / "bad.yaml")])
    assert bad.exit_code == 2
    assert "$.server.prot" in bad.output
    assert "`port`" in bad.output

"""Strategies of other packages in the configuration: what is found, and what is refused with a clear message."""

import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from accordion.cli.main import app
from accordion.config.load import build
from accordion.config.settings import Settings
from accordion.model.errors import ConfigError
from tests.strategy_packages import install, on_path

HEAD = """
from typing import Annotated, Literal
import msgspec
from accordion.compaction.strategies.base import Strategy, StrategyOptions
"""
GOOD = (
    HEAD
    + """
class ShortenOptions(StrategyOptions, frozen=True):
    most: Annotated[int, msgspec.Meta(ge=1)] = 100
    way: Literal["begin", "end"] = "end"

class Shorten(Strategy):
    name = "shorten"
    options_type = ShortenOptions

    def __init__(self, options):
        self.most = options.most

    def propose(self, view):
        return ()
"""
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with on_path(tmp_path, monkeypatch):
        yield tmp_path


def read(text: str) -> Settings:
    return build(f"compaction: {{pipeline: [{text}]}}".encode(), {}, {})


def refused(text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        read(text)
    return caught.value


def test_a_strategy_of_a_package_is_found_and_built_with_its_options(folder: Path) -> None:
    install(folder, "short-lists", GOOD, shorten="Shorten")
    first, second = read("superseded, {shorten: {most: 7}}").compaction.pipeline
    assert (first.name, second.name, second.build().most) == ("superseded", "shorten", 7)
    assert read("shorten").compaction.pipeline == read("shorten").compaction.pipeline
    assert read("shorten").compaction.pipeline != read("{shorten: {most: 7}}").compaction.pipeline


def test_a_package_that_no_pipeline_names_is_not_imported(folder: Path) -> None:
    install(folder, "short-lists", "raise SystemExit('imported')", shorten="Shorten")
    read("superseded")
    assert "short_lists" not in sys.modules


@pytest.mark.parametrize(
    ("options", "key", "words"),
    [
        ("mots: 7", ".mots", "unknown key; did you mean `most`?"),
        ("most: much", ".most", "expected whole number, got text"),
        ("most: 0", ".most", ">= 1"),
        ("way: middle", ".way", "expected one of"),
    ],
)
def test_its_options_are_validated_as_those_of_accordions_own(folder: Path, options: str, key: str, words: str) -> None:
    install(folder, "short-lists", GOOD, shorten="Shorten")
    error = refused(f"superseded, {{shorten: {{{options}}}}}")
    assert error.path == f"$.compaction.pipeline[1].shorten{key}"
    assert words in error.message
    assert "(strategy `shorten` of the package `short-lists`)" in error.message


def test_a_misspelled_name_leads_to_that_of_a_package(folder: Path) -> None:
    install(folder, "short-lists", GOOD, shorten="Shorten")
    assert "did you mean `shorten`?" in refused("shortn").message
    assert "body, shorten" in refused("zip").message


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import no_such_module", "cannot be imported: ModuleNotFoundError: No module named 'no_such_module'"),
        ("raise SystemExit('no')", "cannot be imported: SystemExit: no"),
        ("Shorter = 1", "cannot be imported: AttributeError"),
        ("class Shorten: ...", "is no subclass of `accordion.Strategy`"),
        ("def Shorten(options): ...", "is no subclass of `accordion.Strategy`"),
        (GOOD.replace('name = "shorten"', 'name = "cut"'), "calls itself `cut`"),
        (GOOD.replace("def propose", "def proposes"), "has no method `propose`"),
        (GOOD.replace("def propose", "async def propose"), "asynchronous"),
        (GOOD.replace("options_type = ", "options_type = int #"), "no subclass of `accordion.StrategyOptions`"),
        (
            GOOD.replace("options_type = ", "budget = 'time' #"),
            "has the budget 'time'; there are tokens",
        ),
        (GOOD.replace("= options.most", "= 1 / 0"), "cannot be built: ZeroDivisionError"),
        (GOOD.replace("most: Annot", "most: Unknown = 1; least: Annot"), "cannot be imported"),
    ],
)
def test_a_broken_package_is_an_error_with_its_name_and_the_strategys(folder: Path, code: str, words: str) -> None:
    install(folder, "short-lists", code, shorten="Shorten")
    error = refused("superseded, shorten")
    assert error.path == "$.compaction.pipeline[1]"
    assert words in error.message
    assert "`shorten` of the package `short-lists`" in error.message


def test_two_packages_with_one_name_are_an_error_with_both(folder: Path) -> None:
    install(folder, "short-lists", GOOD, shorten="Shorten")
    install(folder, "long-lists", GOOD, shorten="Shorten")
    message = refused("shorten").message
    assert "`long-lists` and `short-lists` have a strategy `shorten` each" in message


def test_a_package_with_the_name_of_one_of_accordions_own_is_an_error(folder: Path) -> None:
    install(folder, "short-lists", GOOD.replace('"shorten"', '"superseded"'), superseded="Shorten")
    message = refused("{superseded: {}}").message
    assert "`short-lists` has a strategy `superseded`, but Accordion has one of this name" in message


def test_the_command_check_says_what_is_wrong_and_what_is_right(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    install(folder, "short-lists", GOOD, shorten="Shorten")
    config = folder / "config.yaml"
    config.write_text("compaction: {pipeline: [superseded, {shorten: {most: 7}}]}")
    with caplog.at_level(logging.CRITICAL):
        right = CliRunner().invoke(app, ["check", str(config)])
        config.write_text("compaction: {pipeline: [{shorten: {mots: 7}}]}")
        wrong = CliRunner().invoke(app, ["check", str(config)])
    assert right.exit_code == 0
    assert "superseded, shorten" in right.output
    assert wrong.exit_code != 0
    assert "short-lists" in wrong.output

"""The documentation as a site: it is built without a warning, and asks no other server for anything."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.reference import documents, write_tables

pytestmark = pytest.mark.rest  # mkdocs comes with `make test-all`


ROOT = Path(__file__).parents[1]
SOURCES = (
    "mkdocs.yml",
    "docs",
    "scripts",
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "CHANGELOG.md",
    "config.yaml",
)


def test_the_tables_of_the_reference_are_made_from_the_code():
    """`make docs` writes them."""
    found = list(documents())
    assert {path.stem for path in found} == {"api", "cli", "configuration", "figures"}
    for path in found:
        assert path.read_text("utf-8") == write_tables(path.read_text("utf-8")), path.name


def test_a_table_that_is_not_known_fails():
    with pytest.raises(KeyError):
        write_tables("<!-- reference: options nothing -->\n<!-- end of reference -->\n")


def test_the_glossary_is_short():
    """At most 30 words need an explanation. What only one page uses is explained on that page."""
    rows = [line for line in (ROOT / "docs" / "glossary.md").read_text("utf-8").splitlines() if line.startswith("| ")]
    assert 0 < len(rows) - 1 <= 30


def build(root: Path, site: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)],
        cwd=root,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def copy(folder: Path) -> Path:
    """Copies all that the site is made of."""
    folder.mkdir()
    for name in SOURCES:
        path = ROOT / name
        (shutil.copytree if path.is_dir() else shutil.copy)(path, folder / name)
    (folder / "bench").mkdir()
    shutil.copy(ROOT / "bench" / "README.md", folder / "bench")
    return folder


def test_every_document_is_a_page_and_every_link_leads_somewhere(tmp_path: Path):
    built = build(ROOT, tmp_path, ACCORDION_REPOSITORY="https://example.com/accordion")
    assert built.returncode == 0, built.stderr
    pages = {path.stem for path in tmp_path.glob("*.html")}
    documents = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert documents | {"index", "benchmarks", "contributing", "changelog", "security", "settings"} <= pages
    index = (tmp_path / "index.html").read_text()
    commands = (tmp_path / "cli.html").read_text()
    assert 'href="benchmarks.html#quality"' in index
    assert 'href="https://example.com/accordion/blob/main/examples/transcript.jsonl"' in commands


def test_no_page_loads_anything_from_another_server(tmp_path: Path):
    assert build(ROOT, tmp_path).returncode == 0
    for path in tmp_path.rglob("*.html"):
        assert not re.search(r'(src|href)="https?://[^"]+\.(js|css|woff2?|png|svg)"', path.read_text()), path


def test_a_link_that_leads_nowhere_fails(tmp_path: Path):
    root = copy(tmp_path / "root")
    page = root / "docs" / "page.md"
    for link in ("nowhere.md", "cli.md#no-such-command", "../README.md#nowhere"):
        page.write_text(f"{(ROOT / 'docs' / 'page.md').read_text()}\n[a link]({link})\n")
        assert build(root, tmp_path / "site").returncode, link

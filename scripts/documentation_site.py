"""MkDocs hooks: the documents outside docs/ become pages of the site too, and their links lead to these pages.

Without the hooks, a link such as `../bench/README.md` would lead nowhere in the site. A link to other files of the
repository leads to the repository if mkdocs.yml knows its address; else only its text stays.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]

PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "bench/README.md": "benchmarks.md",
    "config.yaml": "settings.md",
}
"""The documents outside docs/, by their paths in the repository, and their pages."""

FOLDERS = {"docs/adr": "adr/0001-record-decisions.md"}
"""Folders that a link may lead to, and the first page of each."""

_SOURCES = {page: path for path, page in PAGES.items()}
_LINK = re.compile(r"\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^()\s]+)\)")
_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Lists the decisions in the navigation, in their order."""
    decisions = sorted(path.name for path in (ROOT / "docs" / "adr").glob("*.md"))
    config.nav = [*(config.nav or []), {"Decisions": [f"adr/{name}" for name in decisions]}]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the documents outside docs/."""
    for path, page in PAGES.items():
        text = (ROOT / path).read_text("utf-8")
        if path.endswith(".yaml"):
            text = f"# All settings\n\n```yaml\n{text}```\n"
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: Any) -> str:
    """Rewrites the links of a page, except in code."""
    uri = page.file.src_uri
    source = _SOURCES.get(uri, f"docs/{uri}")
    parts = _FENCE.split(markdown)
    return "".join(part if at % 2 else _rewrite_links(part, source, uri, config) for at, part in enumerate(parts))


def _rewrite_links(text: str, source: str, uri: str, config: MkDocsConfig) -> str:
    def rewrite(found: re.Match[str]) -> str:
        label, target = found.groups()
        path, _, anchor = target.partition("#")
        if not path or ":" in target:
            return found[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        anchor = f"#{anchor}" if anchor else ""
        page = PAGES.get(path) or FOLDERS.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else "")
        if page:
            return f"[{label}]({posixpath.relpath(page, posixpath.dirname(uri) or '.')}{anchor})"
        if config.repo_url:
            return f"[{label}]({config.repo_url.rstrip('/')}/blob/main/{path}{anchor})"
        return label

    return _LINK.sub(rewrite, text)

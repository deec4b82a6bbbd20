import email.message
from collections.abc import Callable

import pytest

from accordion.cli import document_links
from accordion.cli.document_links import document_link

PAGE = "docs/run-an-agent.md#no-request-came"


def published(*urls: str) -> Callable[[str], email.message.Message]:
    """Metadata with these project URLs."""
    message = email.message.Message()
    for url in urls:
        message["Project-URL"] = url
    return lambda name: message


def test_a_release_names_a_page_by_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    files = "https://git.example/me/accordion/blob/v1.2.3"
    urls = ("Source, https://git.example/me/accordion", f"Documentation, {files}/README.md#documentation")
    monkeypatch.setattr(document_links, "metadata", published(*urls))
    assert document_link(PAGE) == f"{files}/{PAGE}"


@pytest.mark.parametrize("urls", [(), ("Documentation, https://docs.example",)])
def test_without_that_address_the_path_in_the_repository_is_named(
    monkeypatch: pytest.MonkeyPatch, urls: tuple[str, ...]
) -> None:
    monkeypatch.setattr(document_links, "metadata", published(*urls))
    assert document_link(PAGE) == PAGE

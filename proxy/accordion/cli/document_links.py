"""Names pages of the documentation, which an installed package does not contain."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, metadata

_DOCUMENTATION = "Documentation, "
_README = "/README.md#documentation"


def document_link(page: str) -> str:
    """Returns the address of a page such as `docs/savings.md`, with a heading behind `#` if wanted.

    The metadata of a release have the address (hatch_build.py). Without it, the page's path in the repository.
    """
    try:
        urls = metadata("accordion-proxy").get_all("Project-URL") or []
    except PackageNotFoundError:
        urls = []
    address = next((url.removeprefix(_DOCUMENTATION) for url in urls if url.startswith(_DOCUMENTATION)), "")
    return f"{address.removesuffix(_README)}/{page}" if address.endswith(_README) else page

"""Adds to the metadata what depends on the repository's address: project URLs, and a README with complete links.

The release workflow passes the address in ACCORDION_REPOSITORY (`https://host/owner/name`). Without it, the metadata
has no URLs, and the README's links stay relative.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_RELATIVE_LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)]+)\)")


class ReleaseMetadata(MetadataHookInterface):
    """Hatchling's hook for the dynamic fields `readme` and `urls`."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Sets the dynamic fields."""
        text = (Path(self.root) / "README.md").read_text("utf-8")
        if repository := os.environ.get("ACCORDION_REPOSITORY", "").rstrip("/"):
            files = f"{repository}/blob/v{metadata['version']}"
            text = _RELATIVE_LINK.sub(rf"]({files}/\1)", text)
            metadata["urls"] = {
                "Source": repository,
                "Documentation": f"{files}/README.md#documentation",
                "Changelog": f"{files}/CHANGELOG.md",
                "Issues": f"{repository}/issues",
                "Security": f"{repository}/security/policy",
            }
        metadata["readme"] = {"content-type": "text/markdown", "text": text}

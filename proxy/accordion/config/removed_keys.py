"""Settings of former versions that are constants now. A file that has one stays valid; the key has no effect."""

from __future__ import annotations

from typing import Any

REMOVED_KEYS = {
    "windows.learnt_hours": "24 hours are built in; `model_info.max_input_tokens` in model_list sets a window for good",
    "unfold.recall.sources": "3 are built in, because `unfold.recall.tokens` limits the length of an excerpt",
    "limits.count_cache_entries": "20,000 are built in, because they take 14 MB at most",
    "limits.exchanges_per_session": "50 are built in, because they are only for display; totals count every request",
}
"""Each key with the value that is built in, and the reason. No variable of the environment set one of them."""


def drop_removed_keys(tree: dict[str, Any]) -> tuple[str, ...]:
    """Removes the keys of REMOVED_KEYS from the file's `tree`; returns a sentence for each that was there."""
    sentences = []
    for key, reason in REMOVED_KEYS.items():
        *sections, name = key.split(".")
        section: Any = tree
        for each in sections:
            section = section.get(each) if isinstance(section, dict) else None
        if isinstance(section, dict) and name in section:
            del section[name]
            sentences.append(f"$.{key}: no longer a setting, and ignored; {reason}")
    return tuple(sentences)

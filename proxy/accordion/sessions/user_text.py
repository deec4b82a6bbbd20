"""Finds the words of a user in the messages of the role `user`: clients add blocks and notes of their own."""

from __future__ import annotations

import re
from typing import Final

_CLIENT_TAGS: Final = (
    *("system-reminder", "environment_context", "user_instructions", "environment_details", "env", "task-notification"),
    *("local-command-caveat", "local-command-stdout", "local-command-stderr"),
    *("command-name", "command-message", "command-args", "bash-input", "bash-stdout", "bash-stderr"),
    *("ide_opened_file", "ide_selection", "user-prompt-submit-hook"),
)
"""Tags of the blocks that clients add to a user's message."""
_SUMMARY_BEGINNINGS: Final = (
    "This session is being continued from a previous conversation",
    "Another language model started to solve this problem",
)
_NOT_TYPED: Final = (
    *("[Request interrupted by user", "Caveat: The messages below", "# AGENTS.md instructions for"),
    *("Base directory for this skill", "Operation stopped by hook:", "Stop hook feedback:"),
    "This is the Gemini CLI. We are setting up the context",
)
_CLIENT_REMARK: Final = re.compile(
    r"^If you need specific details from before (?:exiting plan mode|compaction) \([^\n]*read the full transcript at:"
    r"[^\n]*$",
    re.MULTILINE,
)
"""Claude Code's remark below a plan that it hands over, and below its own summary."""


def user_text(text: str) -> str:
    """Returns a user's text without the blocks that clients add; empty if the user wrote nothing."""
    text = _CLIENT_REMARK.sub("", remove_client_blocks(text)).strip()
    return "" if text.startswith(_NOT_TYPED) else text


def remove_client_blocks(text: str) -> str:
    """Removes the blocks that clients add to a text."""
    for tag in _CLIENT_TAGS:
        text = _remove_between(text, f"<{tag}>", f"</{tag}>")
    return text


def _remove_between(text: str, start: str, end: str) -> str:
    if start not in text:
        return text
    pieces, position = [], 0
    while (first := text.find(start, position)) >= 0 and (last := text.find(end, first)) >= 0:
        pieces.append(text[position:first])
        position = last + len(end)
    return "".join([*pieces, text[position:]])


def is_client_summary(text: str) -> bool:
    """Whether a text is the summary that a client put in place of a history that it compacted itself."""
    return text.startswith(_SUMMARY_BEGINNINGS)

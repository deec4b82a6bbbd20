"""Says in a sentence what is wrong with a file that is not YAML, in place of the parser's message."""

from __future__ import annotations

import re
from collections.abc import Sequence

import yaml

_GLUED_KEY = re.compile(r"\s*(?:- )?[\w-]+:[^\s/]")
"""A line such as `port:8787`, without the space after the colon. Not a URL."""
_BY_PROBLEM = (
    ("undefined alias", "`*` refers to an anchor that is not in the file; put the value in quotes"),
    ("cannot start any token", "a value cannot begin with this character; put the value in quotes"),
    (
        "'-' indicator",
        "this line is no entry of the list before it; begin it with `- `, or correct its indentation",
    ),
    ("unhashable key", "a brace stands where a key is expected; put the value in quotes"),
    ("another document", "a second document begins here; remove the line `---`"),
)
"""A part of the parser's message, and the sentence about its place."""


def describe_yaml_error(error: yaml.MarkedYAMLError, text: str) -> str:
    """Returns the line, the column and a sentence. It contains nothing of the file, which may hold secrets."""
    mark = error.problem_mark or error.context_mark
    if mark is None:
        return "this is not YAML"
    lines = text.splitlines()
    line, column, sentence = _explain(error, lines, mark)
    return f"line {line + 1}, column {column + 1}: {sentence}"


def _explain(error: yaml.MarkedYAMLError, lines: Sequence[str], mark: yaml.Mark) -> tuple[int, int, str]:
    """Returns the line and the column, counted from 0, and the sentence."""
    problem, opening = error.problem or "", error.context_mark or mark
    here = (mark.line, mark.column)
    line = lines[mark.line] if mark.line < len(lines) else ""
    if line[mark.column : mark.column + 1] == "\t":
        return *here, "this is a tab; indent with spaces"
    if error.context == "while scanning a quoted scalar":
        return opening.line, opening.column, "the quote that begins here is not closed"
    if "',' or" in problem:
        return opening.line, opening.column, "the bracket that begins here is not closed"
    if "expected ':'" in problem or "mapping values" in problem:
        return _explain_colon(lines, opening if "expected" in problem else mark)
    if "expected key" in problem or "<block end>" in problem:
        if line[: mark.column].strip():
            return *here, "text follows a closing quote; put the whole value in quotes of the other kind"
        return *here, "the indentation of this line fits none of the lines before it"
    sentence = next((sentence for part, sentence in _BY_PROBLEM if part in problem), "")
    # Quoted text may come from the file (an alias, a tag), and may be part of a secret.
    return *here, sentence or re.sub(r"'[^'<>]{2,}'", "'…'", problem or "this is not YAML")


def _explain_colon(lines: Sequence[str], mark: yaml.Mark) -> tuple[int, int, str]:
    """Explains a colon that is missing, or that stands where none may be."""
    for number in (mark.line - 1, mark.line):
        if 0 <= number < len(lines) and (match := _GLUED_KEY.match(lines[number])):
            return number, match.end() - 1, "a space is missing here, after the colon"
    line = lines[mark.line] if mark.line < len(lines) else ""
    if re.search(r":\s", line[: mark.column]):
        return mark.line, mark.column, "this is the second colon of the line; put the value in quotes"
    return mark.line, mark.column, "expected `key: value`, indented like the other keys of its section"

"""Finds decisions, constraints, dependencies, issues, changes and notes of a session by rule.

Every item is a piece of the conversation's own text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from accordion.memory.extraction import is_safe
from accordion.memory.file_changes import find_file_accesses, find_patch, find_path, is_shell, shell_command, tool_kind
from accordion.memory.files import SessionFile
from accordion.memory.sentences import Sentence
from accordion.memory.steps import RecordedStep
from accordion.memory.todos import is_todo
from accordion.summaries.facts import find_trouble

MOST: Final = 12
"""Items of one section at most. Of decisions and issues, the latest are taken."""
_MAX_CHARACTERS: Final = 320
_MAX_EXAMINED: Final = 100_000

_USER_DECISION: Final = re.compile(
    r"\blet['’]?s (?:go|do|use|keep|switch|stick|add|make|drop|skip|remove|not)\b"
    r"|\b(?:i|we)['’]d (?:go|stick) (?:with|for)\b|\b(?:i|we) (?:like|prefer|choose|chose|pick|want to go with) "
    r"(?:the |your )?(?:option|approach|idea|version|solution)"
    r"|\bgo with\b|\buse [^.?!]{2,80} instead of\b",
    re.IGNORECASE,
)
_ASSISTANT_DECISION: Final = re.compile(
    r"\b(?:decided|chose|chosen|opted|settled on|picked|going with|went with)\b"
    r"|\b(?:i['’]ll|i will|we['’]ll|we) (?:use|used|keep|kept) [^.]{3,160}"
    r"\b(?:because|since|instead of|rather than|so that)\b"
    r"|\b(?:the )?(?:better|best|cleanest|simplest|right) (?:approach|solution|option|fix|way) (?:is|was|would be)\b",
    re.IGNORECASE,
)
_REASON: Final = re.compile(r",?\s+(?:\(?because|since|so that|as it|as this|to avoid|in order to)\b", re.IGNORECASE)
_CONSTRAINT: Final = re.compile(
    r"\b(?:must|mustn['’]t|never|always"
    r"|(?:don['’]?t|do not) (?!think|know|see|have|understand|get|remember|believe|we|you|they|like to)\w+"
    r"|should(?:n['’]?t| not)|avoid|no more than|at most|at least|maximum|make sure|ensure|prefer|not too|ideally"
    r"|keep (?:it|them|this|things)|stick (?:to|with)|only (?:use|change|touch|edit|modify|run)"
    r"|needs? to be|has to be|have to be|without \w+ing)\b",
    re.IGNORECASE,
)
_ISSUE: Final = re.compile(
    r"\b(?:known (?:issue|limitation|bug)s?|limitations?:|not (?:yet|currently) (?:\w+ )?(?:implemented|handled|"
    r"supported|fixed|covered|tested|working)|still (?:fail(?:s|ing)?|broken|missing|open|doesn['’]?t|not)|flaky"
    r"|out of scope|follow-?up|defer(?:red)?|workaround|TO[- ]?DO|FIX[- ]?ME|unrelated (?:failure|issue)"
    r"|race condition)\b"
)
_HYPOTHESIS: Final = re.compile(
    r"\b(?:suspect|hypothes[ie]s|probably|likely because|might be|may be (?:because|due)|could be (?:because|due|that)"
    r"|root cause|turns out|turned out|interesting(?:ly)?|i think"
    r"|the (?:issue|problem|bug) (?:is|was) (?:that|in|with))\b",
    re.IGNORECASE,
)
_FEWEST_SPACES: Final = 4
"""Spaces that a noteworthy sentence has at least."""
_ANNOUNCEMENT: Final = re.compile(
    r"^(?:now |ok,? |okay,? |good[,.]? |great[,.]? )*(?:let me|i['’]ll (?:now|start|check))\b", re.I
)
_QUESTION_AND_ANSWER: Final = re.compile(r'"([^"\n]{3,600})"="([^"\n]{1,300})"')

_TOOLS = (
    r"(?:(?:python3?|py) -m )?(?:pip3?|pipx|uv pip|conda|mamba|apt(?:-get)?|brew|gem|dnf|yum|apk|choco|winget) "
    r"(?:-\w+ |--\S+ )*(?:install|add)"
)
_INSTALLATION: Final = re.compile(
    rf"(?:^|[;&|(\n!%])\s*(?:sudo (?:-\w+ )*)?((?:{_TOOLS}|uv (?:tool install|add)|poetry add|pdm add"
    r"|npm (?:i|install|add)|(?:pnpm|yarn|bun|cargo|deno|rye) (?:add|install)|go (?:get|install)|composer require"
    r"|bundle add|mix deps\.get|dotnet add [^\n;&|]*?package)\b[^\n;&|)]*)"
)
_MANIFEST: Final = re.compile(
    r"(?:^|[\\/])(?:package\.json|pyproject\.toml|requirements[\w.-]*\.txt|go\.mod|Cargo\.toml|Gemfile|composer\.json"
    r"|pom\.xml|build\.gradle(?:\.kts)?|environment\.ya?ml|setup\.(?:py|cfg)|Pipfile|deno\.json|mix\.exs)$"
)
_COMMIT: Final = re.compile(r"^\[([^\]\n]{1,200}) ([0-9a-f]{7,40})\] (\S[^\n]*)", re.MULTILINE)


def find_decisions(sentences: Sequence[Sentence], steps: Iterable[RecordedStep]) -> list[str]:
    """Returns decisions with their reasons, word for word, including the user's answers to questions."""
    decisions: list[tuple[int, str]] = []
    for step in steps:
        if "ask" in tool_kind(step) and step.is_done:
            decisions += [
                (step.at, f"{question}: {answer} (the user's answer)") for question, answer in _find_answers(step)
            ]
    sentences_by_position = {(sentence.at, sentence.position): sentence for sentence in sentences}
    for sentence in sentences:
        pattern = _USER_DECISION if sentence.speaker == "user" else _ASSISTANT_DECISION
        if pattern.search(sentence.text) and _is_noteworthy(sentence.text):
            decisions.append(
                (sentence.at, _with_reason(sentence, sentences_by_position.get((sentence.at, sentence.position + 1))))
            )
    return _newest(text for _, text in sorted(decisions, key=lambda pair: pair[0]))


def find_constraints(sentences: Iterable[Sentence]) -> list[str]:
    """Returns the user's constraints and rules in the user's words, the earliest first."""
    statements = (
        statement for statement in sentences if statement.speaker == "user" and not statement.text.endswith("?")
    )
    return list(
        dict.fromkeys(shorten(statement.text) for statement in statements if _CONSTRAINT.search(statement.text))
    )[:MOST]


def find_dependencies(steps: Sequence[RecordedStep]) -> list[str]:
    """Returns calls of package managers, and changed manifests with the added lines."""
    items: dict[str, None] = {}
    for step in steps:
        command = shell_command(step) if is_shell(step) else ""
        for call in _INSTALLATION.findall(command[:20_000]):
            outcome_note = " (failed)" if step.is_failed else " (no result recorded)" if step.result is None else ""
            items[shorten(f"{call.strip()}{outcome_note}")] = None
        for access in find_file_accesses(step):
            if access.act != "read" and _MANIFEST.search(access.path):
                lines = "; ".join(_added_lines(step))
                items[shorten(f"{access.path} {access.act}" + (f": {lines}" if lines else ""))] = None
    return _newest(items)


def find_issues(sentences: Iterable[Sentence], steps: Sequence[RecordedStep]) -> list[str]:
    """Returns statements about open or broken things, and the latest failed commands."""
    issues = [
        shorten(sentence.text)
        for sentence in sentences
        if _ISSUE.search(sentence.text) and _is_noteworthy(sentence.text)
    ]
    latest: dict[str, RecordedStep] = {}
    for step in steps:
        if is_shell(step) and step.result is not None:
            command = shell_command(step)
            latest.pop(command, None)
            latest[command] = step
    failed_steps = [step for step in list(latest.values())[-3:] if step.is_failed]
    return _newest([*issues, *(f"{_describe_call(step)}: failed: {describe_outcome(step)}" for step in failed_steps)])


def describe_changes(files: Iterable[SessionFile], steps: Iterable[RecordedStep]) -> list[str]:
    """Describes the changes of files, and the commits."""
    items: list[str] = []
    for file in files:
        if file.is_changed:
            times = f" ({file.edits} edit{'s' if file.edits != 1 else ''})" if file.edits else ""
            items.append(f"{'Deleted' if file.deleted else 'Created' if file.created else 'Edited'} {file.path}{times}")
    for step in steps:
        if is_shell(step) and "git commit" in shell_command(step):
            items += [
                f"Committed {commit[1]} on {commit[0]}: {shorten(commit[2])}"
                for commit in _COMMIT.findall((step.result or "")[:_MAX_EXAMINED])
            ]
    return list(dict.fromkeys(items))


def find_notes(sentences: Iterable[Sentence]) -> list[str]:
    """Returns the assistant's newest hypotheses and insights."""
    notes = [
        shorten(sentence.text)
        for sentence in sentences
        if sentence.speaker == "assistant" and _HYPOTHESIS.search(sentence.text) and _is_noteworthy(sentence.text)
    ]
    return _newest(notes, 8)


def describe_last_action(steps: Sequence[RecordedStep]) -> str:
    """Describes the last step that changed something and its outcome; else the last step; empty for no steps."""
    candidates = [step for step in steps if not is_todo(step)]
    changing_steps = (
        step for step in reversed(candidates) if is_shell(step) or find_patch(step) or not _only_reads(step)
    )
    step = next(changing_steps, candidates[-1] if candidates else None)
    if step is None:
        return ""
    if step.result is None:
        return f"{_describe_call(step)}: no result is recorded"
    outcome = describe_outcome(step)
    return f"{_describe_call(step)}: {'failed' if step.is_failed else 'done'}{f': {outcome}' if outcome else ''}"


def describe_outcome(step: RecordedStep) -> str:
    """Returns the most informative line of a result: the error, else the last or first line."""
    text = step.output[-_MAX_EXAMINED:]
    if step.is_failed and (errors := list(find_trouble(text))):
        return shorten(next((line for line in errors if line.count(" ") >= 2), errors[0]))
    lines = [
        line.strip() for line in text.split("\n") if any(map(str.isalnum, line)) and not line.strip().startswith("<")
    ]
    if not lines:
        return ""
    return shorten(lines[-1] if is_shell(step) else lines[0])


def shorten(text: str, limit: int = _MAX_CHARACTERS) -> str:
    """Returns a text on one line, cut at the end if it is long."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 2].rsplit(" ", 1)[0] + " …"


def _is_noteworthy(text: str) -> bool:
    """Returns whether a sentence is noteworthy: no question, no mere announcement, no credential."""
    return (
        not text.endswith(("?", ":"))
        and text.count(" ") >= _FEWEST_SPACES
        and not _ANNOUNCEMENT.match(text)
        and is_safe(text)
    )


def _only_reads(step: RecordedStep) -> bool:
    if tool_kind(step) in ("grep", "glob", "ls", "list", "search", "find", "webfetch", "websearch", "toolsearch"):
        return True
    acts = {access.act for access in find_file_accesses(step)}
    return acts == {"read"}


def _describe_call(step: RecordedStep) -> str:
    """Describes a call on one line: the tool with its command or its file, shortened."""
    subject = (
        shell_command(step)
        if is_shell(step)
        else find_path(step) or step.text("description", "query", "prompt", "url", "pattern")
    )
    return f"{step.name} `{shorten(subject, 200)}`" if subject else step.name


def _find_answers(step: RecordedStep) -> Iterator[tuple[str, str]]:
    for question, answer in _QUESTION_AND_ANSWER.findall((step.result or "")[:20_000]):
        yield shorten(question), shorten(answer)


def _with_reason(sentence: Sentence, following: Sentence | None) -> str:
    """Returns a decision, a colon and its reason, from the same sentence or the next one."""
    text = sentence.text.rstrip(".!")
    reason = _REASON.search(text)
    if reason is not None and reason.start() > 8:
        return f"{shorten(text[: reason.start()])}: {shorten(text[reason.start() :].lstrip(', '))}"
    if following is not None and (
        _REASON.search(f" {following.text}") or re.match(r"(?:This|It|That)\b", following.text)
    ):
        return f"{shorten(text)}: {shorten(following.text)}"
    return f"{shorten(text)}: {'said by the user' if sentence.speaker == 'user' else 'no reason was given'}"


def _added_lines(step: RecordedStep) -> list[str]:
    """Returns the first lines that an edit added to a manifest."""
    old_lines = step.text("old_string", "old_str", "oldText", "oldString").split("\n")
    new_lines = step.text("new_string", "new_str", "newText", "newString").split("\n")
    if patch := find_patch(step):
        return [line[1:].strip() for line in patch.split("\n") if line.startswith("+") and line[1:].strip()][:6]
    return [line.strip() for line in new_lines if line.strip() and line not in old_lines][:6]


def _newest(items: Iterable[str], limit: int = MOST) -> list[str]:
    return list(dict.fromkeys(items))[-limit:]

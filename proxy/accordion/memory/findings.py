"""What a session settled, ran into and left open, by rule. Every item is a piece of the conversation's own text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from accordion.memory.extraction import safe
from accordion.memory.files import File
from accordion.memory.sentences import Sentence
from accordion.memory.steps import Step
from accordion.memory.todos import is_todo
from accordion.memory.touched import command_of, is_shell, kind_of, patch_of, path_of, touches
from accordion.summaries.facts import trouble

MOST: Final = 12
"""Items of one section at most; those said last, of decisions and issues."""
_LONG: Final = 320
_RESULT: Final = 100_000

_CHOOSES: Final = re.compile(
    r"\blet['’]?s (?:go|do|use|keep|switch|stick|add|make|drop|skip|remove|not)\b"
    r"|\b(?:i|we)['’]d (?:go|stick) (?:with|for)\b|\b(?:i|we) (?:like|prefer|choose|chose|pick|want to go with) "
    r"(?:the |your )?(?:option|approach|idea|version|solution)"
    r"|\bgo with\b|\buse [^.?!]{2,80} instead of\b",
    re.IGNORECASE,
)
_DECIDES: Final = re.compile(
    r"\b(?:decided|chose|chosen|opted|settled on|picked|going with|went with)\b"
    r"|\b(?:i['’]ll|i will|we['’]ll|we) (?:use|used|keep|kept) [^.]{3,160}"
    r"\b(?:because|since|instead of|rather than|so that)\b"
    r"|\b(?:the )?(?:better|best|cleanest|simplest|right) (?:approach|solution|option|fix|way) (?:is|was|would be)\b",
    re.IGNORECASE,
)
_WHY: Final = re.compile(r",?\s+(?:\(?because|since|so that|as it|as this|to avoid|in order to)\b", re.IGNORECASE)
_LIMITS: Final = re.compile(
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
_HUNCH: Final = re.compile(
    r"\b(?:suspect|hypothes[ie]s|probably|likely because|might be|may be (?:because|due)|could be (?:because|due|that)"
    r"|root cause|turns out|turned out|interesting(?:ly)?|i think"
    r"|the (?:issue|problem|bug) (?:is|was) (?:that|in|with))\b",
    re.IGNORECASE,
)
_SAYS_LITTLE: Final = 4
"""Words of a sentence that says too little."""
_ANNOUNCES: Final = re.compile(
    r"^(?:now |ok,? |okay,? |good[,.]? |great[,.]? )*(?:let me|i['’]ll (?:now|start|check))\b", re.I
)
_ANSWERED: Final = re.compile(r'"([^"\n]{3,600})"="([^"\n]{1,300})"')

_TOOLS = (
    r"(?:(?:python3?|py) -m )?(?:pip3?|pipx|uv pip|conda|mamba|apt(?:-get)?|brew|gem|dnf|yum|apk|choco|winget) "
    r"(?:-\w+ |--\S+ )*(?:install|add)"
)
_INSTALLS: Final = re.compile(
    rf"(?:^|[;&|(\n!%])\s*(?:sudo (?:-\w+ )*)?((?:{_TOOLS}|uv (?:tool install|add)|poetry add|pdm add"
    r"|npm (?:i|install|add)|(?:pnpm|yarn|bun|cargo|deno|rye) (?:add|install)|go (?:get|install)|composer require"
    r"|bundle add|mix deps\.get|dotnet add [^\n;&|]*?package)\b[^\n;&|)]*)"
)
_MANIFEST: Final = re.compile(
    r"(?:^|[\\/])(?:package\.json|pyproject\.toml|requirements[\w.-]*\.txt|go\.mod|Cargo\.toml|Gemfile|composer\.json"
    r"|pom\.xml|build\.gradle(?:\.kts)?|environment\.ya?ml|setup\.(?:py|cfg)|Pipfile|deno\.json|mix\.exs)$"
)
_COMMIT: Final = re.compile(r"^\[([^\]\n]{1,200}) ([0-9a-f]{7,40})\] (\S[^\n]*)", re.MULTILINE)


def decisions(said: Sequence[Sentence], steps: Iterable[Step]) -> list[str]:
    """Decisions with their reasons, as they were said; what the user answered to a question, too."""
    found: list[tuple[int, str]] = []
    for step in steps:
        if "ask" in kind_of(step) and step.done:
            found += [(step.at, f"{asked}: {answer} (the user's answer)") for asked, answer in _answers(step)]
    following = {(each.at, each.place): each for each in said}
    for each in said:
        rule = _CHOOSES if each.speaker == "user" else _DECIDES
        if rule.search(each.text) and _tells(each.text):
            found.append((each.at, _reasoned(each, following.get((each.at, each.place + 1)))))
    return _newest(text for _, text in sorted(found, key=lambda pair: pair[0]))


def constraints(said: Iterable[Sentence]) -> list[str]:
    """What the user ruled out or asked to be held to, in the user's words; what was said first comes first."""
    own = (each for each in said if each.speaker == "user" and not each.text.endswith("?"))
    return list(dict.fromkeys(cut(each.text) for each in own if _LIMITS.search(each.text)))[:MOST]


def dependencies(steps: Sequence[Step]) -> list[str]:
    """Package manager calls, and manifests that were changed with what came into them."""
    out: dict[str, None] = {}
    for step in steps:
        command = command_of(step) if is_shell(step) else ""
        for call in _INSTALLS.findall(command[:20_000]):
            failed = " (failed)" if step.failed else " (no result recorded)" if step.result is None else ""
            out[cut(f"{call.strip()}{failed}")] = None
        for touch in touches(step):
            if touch.act != "read" and _MANIFEST.search(touch.path):
                lines = "; ".join(_added(step))
                out[cut(f"{touch.path} {touch.act}" + (f": {lines}" if lines else ""))] = None
    return _newest(out)


def issues(said: Iterable[Sentence], steps: Sequence[Step]) -> list[str]:
    """What was said to be left open or broken, and commands that failed last."""
    told = [cut(each.text) for each in said if _ISSUE.search(each.text) and _tells(each.text)]
    last: dict[str, Step] = {}
    for step in steps:
        if is_shell(step) and step.result is not None:
            command = command_of(step)
            last.pop(command, None)
            last[command] = step
    failing = [step for step in list(last.values())[-3:] if step.failed]
    return _newest([*told, *(f"{_brief(step)}: failed: {outcome(step)}" for step in failing)])


def changes(files: Iterable[File], steps: Iterable[Step]) -> list[str]:
    """What was done to which file, and what was committed."""
    out: list[str] = []
    for file in files:
        if file.changed:
            times = f" ({file.edits} edit{'s' if file.edits != 1 else ''})" if file.edits else ""
            out.append(f"{'Deleted' if file.deleted else 'Created' if file.created else 'Edited'} {file.path}{times}")
    for step in steps:
        if is_shell(step) and "git commit" in command_of(step):
            out += [
                f"Committed {made[1]} on {made[0]}: {cut(made[2])}"
                for made in _COMMIT.findall((step.result or "")[:_RESULT])
            ]
    return list(dict.fromkeys(out))


def notes(said: Iterable[Sentence]) -> list[str]:
    """Hunches, causes found and other turns of thought of the assistant, the newest."""
    found = [
        cut(each.text)
        for each in said
        if each.speaker == "assistant" and _HUNCH.search(each.text) and _tells(each.text)
    ]
    return _newest(found, 8)


def last_action(steps: Sequence[Step]) -> str:
    """The last step that did something, and how it ended; of reads alone, the last one. Empty for no steps."""
    real = [step for step in steps if not is_todo(step)]
    acting = (step for step in reversed(real) if is_shell(step) or patch_of(step) or not _only_reads(step))
    step = next(acting, real[-1] if real else None)
    if step is None:
        return ""
    if step.result is None:
        return f"{_brief(step)}: no result is recorded"
    told = outcome(step)
    return f"{_brief(step)}: {'failed' if step.failed else 'done'}{f': {told}' if told else ''}"


def outcome(step: Step) -> str:
    """The line of a result that tells most: of a failure the error, else how it ends or begins."""
    text = step.output[-_RESULT:]
    if step.failed and (wrong := list(trouble(text))):
        return cut(next((line for line in wrong if line.count(" ") >= 2), wrong[0]))
    lines = [
        line.strip() for line in text.split("\n") if any(map(str.isalnum, line)) and not line.strip().startswith("<")
    ]
    if not lines:
        return ""
    return cut(lines[-1] if is_shell(step) else lines[0])


def cut(text: str, most: int = _LONG) -> str:
    """A text on one line, its beginning where it is long."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 2].rsplit(" ", 1)[0] + " …"


def _tells(text: str) -> bool:
    """Whether a sentence is worth noting: no question, no mere announcement, no credential."""
    return (
        not text.endswith(("?", ":")) and text.count(" ") >= _SAYS_LITTLE and not _ANNOUNCES.match(text) and safe(text)
    )


def _only_reads(step: Step) -> bool:
    if kind_of(step) in ("grep", "glob", "ls", "list", "search", "find", "webfetch", "websearch", "toolsearch"):
        return True
    acts = {touch.act for touch in touches(step)}
    return acts == {"read"}


def _brief(step: Step) -> str:
    """A call on one line: the tool with its command or its file, as far as there is room."""
    told = (
        command_of(step)
        if is_shell(step)
        else path_of(step) or step.text("description", "query", "prompt", "url", "pattern")
    )
    return f"{step.name} `{cut(told, 200)}`" if told else step.name


def _answers(step: Step) -> Iterator[tuple[str, str]]:
    for asked, answer in _ANSWERED.findall((step.result or "")[:20_000]):
        yield cut(asked), cut(answer)


def _reasoned(said: Sentence, following: Sentence | None) -> str:
    """A decision, a colon, its reason: from the same sentence, else from the next one where that tells why."""
    text = said.text.rstrip(".!")
    why = _WHY.search(text)
    if why is not None and why.start() > 8:
        return f"{cut(text[: why.start()])}: {cut(text[why.start() :].lstrip(', '))}"
    if following is not None and (_WHY.search(f" {following.text}") or re.match(r"(?:This|It|That)\b", following.text)):
        return f"{cut(text)}: {cut(following.text)}"
    return f"{cut(text)}: {'said by the user' if said.speaker == 'user' else 'no reason was given'}"


def _added(step: Step) -> list[str]:
    """The first lines that an edit brought into a manifest."""
    old = step.text("old_string", "old_str", "oldText", "oldString").split("\n")
    new = step.text("new_string", "new_str", "newText", "newString").split("\n")
    if patch := patch_of(step):
        return [line[1:].strip() for line in patch.split("\n") if line.startswith("+") and line[1:].strip()][:6]
    return [line.strip() for line in new if line.strip() and line not in old][:6]


def _newest(items: Iterable[str], most: int = MOST) -> list[str]:
    return list(dict.fromkeys(items))[-most:]

"""Records `examples/transcript.jsonl`: an agent that explores this repository with real tools.

    python -m examples.record [FILE]        from the repository's root, with the environment that `make test` makes

There is no model. What the user asks, which tools are called and what the assistant says is a fixed plan
(`examples/plan.py`); what the tools answer is real: they list, read and search the files of this repository and run
its tests and its import checks as they are when this runs. Durations are cut from their output, so that two recordings
of the same sources are equal.

The `usage` of each reply is a stand-in as well: no provider was asked. `StandIn` counts with a real tokenizer that is
not the proxy's own, and with overheads of its own, so that the proxy's estimate has something to be wrong about.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from examples.plan import SYSTEM, TOOLS, TURNS

ROOT = Path(__file__).resolve().parent.parent
SHOWN = (".py", ".md", ".yaml", ".toml")
DURATION = re.compile(r" in \d+\.\d+s\b")


class Tools:
    """What the agent can do. Every method takes and gives text; paths are relative to the repository."""

    def list_files(self, folder: str) -> str:
        """The files below a folder, with their sizes in lines."""
        files = sorted(path for path in (ROOT / folder).rglob("*") if path.suffix in SHOWN)
        return "\n".join(f"{path.relative_to(ROOT)} ({len(_lines(path))} lines)" for path in files)

    def read_file(self, path: str) -> str:
        """A whole file."""
        return (ROOT / path).read_text()

    def read_definition(self, path: str, name: str) -> str:
        """One function or class of a module, such as `Sessions.resolve`."""
        node: Any = ast.parse((ROOT / path).read_text())
        for part in name.split("."):
            node = next(inner for inner in node.body if getattr(inner, "name", "") == part)
        return "\n".join(_lines(ROOT / path)[node.lineno - 1 : node.end_lineno])

    def search(self, pattern: str, folder: str) -> str:
        """Every line below a folder that a regular expression is found in."""
        found = []
        for path in sorted((ROOT / folder).rglob("*.py")):
            for number, line in enumerate(_lines(path), 1):
                if re.search(pattern, line):
                    found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
        return "\n".join(found) or "nothing found"

    def run_tests(self, path: str) -> str:
        """Runs the tests of a file."""
        return _run("-m", "pytest", path, "-v", "-p", "no:cacheprovider", "--color=no", "--no-header", "-o", "addopts=")

    def check_imports(self) -> str:
        """Checks that every module imports only from packages below its own."""
        said = _run("-c", "import sys; from importlinter.cli import lint_imports_command as run; run()", "--no-cache")
        return said[said.index("Contracts\n") :]


class StandIn:
    """Stands in for a provider: reports the usage of a request by Anthropic's published tokenizer for older models
    (it comes with litellm), and by overheads of its own for messages, calls and tools."""

    MESSAGE, CALL, TOOLS, TOOL = 5, 12, 60, 9

    def __init__(self) -> None:
        spec = find_spec("litellm")
        folder = Path((spec.submodule_search_locations or [""])[0] if spec else "")
        self._tokenizer = Tokenizer.from_file(str(folder / "litellm_core_utils/tokenizers/anthropic_tokenizer.json"))

    def usages(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> list[dict[str, int]]:
        """What is reported for each assistant message, in the words of Chat Completions."""
        total = self.TOOLS + sum(self._text(json.dumps(tool)) + self.TOOL for tool in tools) if tools else 0
        found = []
        for message in messages:
            size = self._message(message)
            if message["role"] == "assistant":
                found.append({"prompt_tokens": total, "completion_tokens": size, "total_tokens": total + size})
            total += size
        return found

    def _message(self, message: dict[str, Any]) -> int:
        calls = [call["function"] for call in message.get("tool_calls") or ()]
        texts = [message.get("content") or "", *(call[name] for call in calls for name in ("name", "arguments"))]
        return self.MESSAGE + self.CALL * len(calls) + sum(map(self._text, texts))

    def _text(self, text: str) -> int:
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)


def conversation(tools: Tools) -> Iterator[dict[str, Any]]:
    """The messages, in order; the tools run while it goes on."""
    yield {"role": "system", "content": SYSTEM}
    made = 0
    for question, steps, answer in TURNS:
        yield {"role": "user", "content": question}
        for said, calls in steps:
            ids = [f"call_{made + index:03}" for index in range(1, len(calls) + 1)]
            made += len(calls)
            yield {
                "role": "assistant",
                "content": said or None,
                "tool_calls": [
                    {"id": i, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
                    for i, (name, arguments) in zip(ids, calls, strict=True)
                ],
            }
            for call_id, (name, arguments) in zip(ids, calls, strict=True):
                run: Callable[..., str] = getattr(tools, name)
                yield {"role": "tool", "tool_call_id": call_id, "content": run(**arguments)}
        yield {"role": "assistant", "content": answer}


def main() -> None:
    """Writes the transcript: one line of JSON."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "examples" / "transcript.jsonl"
    messages = list(conversation(Tools()))
    recorded = {
        "id": "how-full-is-the-window",
        "model": "scripted-agent",
        "note": "Scripted questions and answers, real tool results; usage by a stand-in, see examples/README.md.",
        "tools": TOOLS,
        "messages": messages,
        "usage": StandIn().usages(messages, TOOLS),
    }
    line = json.dumps(recorded, ensure_ascii=False)
    for place in (ROOT, Path.home(), Path(sys.prefix)):
        if str(place) in line:
            raise SystemExit(f"a path of this machine is in what was recorded: {place}")
    target.write_text(line + "\n")


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def _run(*arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return DURATION.sub("", done.stdout).replace(f"{ROOT}/", "").strip() or f"exit code {done.returncode}"


if __name__ == "__main__":
    main()

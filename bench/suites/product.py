"""Accordion for programs that cannot import it: a process that answers lines of JSON.

This module needs the standard library only.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import TracebackType
from typing import Any

PYTHON = "BENCH_PYTHON"
"""The environment variable that names the Python that Accordion is installed for."""

Messages = list[dict[str, Any]]


class Product:
    """Compacts lists of messages as the proxy would, without a network or a model."""

    def __init__(self) -> None:
        python = os.environ.get(PYTHON, sys.executable)
        self._process = subprocess.Popen(
            [python, "-m", "bench.suites.answering"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def compact(self, messages: Messages, window: int, name: str, *, on_request: bool = False) -> Messages:
        """The list that would be sent for a conversation called `name`. `on_request`: whatever its size."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        asked = {"messages": messages, "window": window, "name": name, "on_request": on_request}
        print(json.dumps(asked), file=self._process.stdin, flush=True)
        if not (answer := self._process.stdout.readline()):
            raise RuntimeError("the process with Accordion ended")
        sent: Messages = json.loads(answer)
        return sent

    def __enter__(self) -> Product:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def text_of(messages: Messages) -> str:
    """The text of a list: messages, calls with their arguments, results."""
    out: list[str] = []
    for message in messages:
        content = message.get("content") or ""
        parts = [content] if isinstance(content, str) else [part.get("text", "") for part in content]
        calls = [
            f"{call['function']['name']} {call['function']['arguments']}" for call in message.get("tool_calls", [])
        ]
        out.append(f"[{message['role']}] " + "\n".join([*filter(None, parts), *calls]))
    return "\n".join(out)

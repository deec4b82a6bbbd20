"""A model at an endpoint of Chat Completions, for `reader`, `agent` and `writer`: every request to it goes through one
relay, which stores the answers.

Theory of operation. The relay listens on loopback. The benchmarks' own requests go to it, and Accordion has it as its
provider, so it receives all that the model would read. It asks the endpoint about one request at a time, and appends
each answer with its seconds to a file, by the hash of the request. The same request is never asked again: an
interrupted run goes on where it stopped, and a run with a new row in its table asks for that row only. A request that
replays a recorded turn gets an empty answer without the model. A summary is a request without our header.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, TextIO

import httpx
import yaml

from accordion.model.costs import NANODOLLARS
from accordion.providers.models.prices import ModelPrices
from bench.servers import ACCORDION, Pins, Unavailable, serving

PURPOSE: Final = "x-bench-purpose"
"""The header that says why a request is sent: for a `turn` that is replayed, or for a `question`."""
TURN, QUESTION, SUMMARY = "turn", "question", "summary"
MODEL, WRITER = "bench-reader", "bench-writer"
"""The model's names for clients of Accordion: with the small window, and for summaries with its own."""
_LONGEST: Final = 3_600.0
"""Seconds. A slow machine takes many minutes for one long prompt."""
_MOMENT: Final = 0.05
_EMPTY_ANSWER: Final = {
    "id": "turn",
    "object": "chat.completion",
    "created": 0,
    "model": MODEL,
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "OK"}, "finish_reason": "stop"}],
}

Messages = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Endpoint:
    """The base URL with /v1, the model's name there, and its key."""

    url: str
    model: str
    key: str = field(default="", repr=False)

    @classmethod
    def from_options(cls, url: str, model: str, key_env: str) -> Endpoint:
        """Takes the key from the environment, and without a name the endpoint's only model."""
        if not url:
            raise Unavailable("reader, agent, writer: name an endpoint by --endpoint URL (with /v1)")
        if key_env and key_env not in os.environ:
            raise Unavailable(f"the environment variable {key_env} is not set")
        key = os.environ.get(key_env, "") if key_env else ""
        return cls(url.rstrip("/"), model or _only_model(url.rstrip("/"), key), key)


def _only_model(url: str, key: str) -> str:
    try:
        names = [each["id"] for each in httpx.get(f"{url}/models", headers=_authorization(key)).json()["data"]]
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
        raise Unavailable(f"{url}/models does not list models ({error}); name one by --model") from error
    if len(names) != 1:
        raise Unavailable(f"the endpoint has {len(names)} models; name one by --model")
    return str(names[0])


def _authorization(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"} if key else {}


@dataclass(frozen=True)
class ModelCall:
    """A request that the model answered: its purpose, tokens and seconds, and its messages as JSON."""

    purpose: str
    input: int
    cached: int
    output: int
    seconds: float
    messages: str = ""


class EndpointRelay:
    """The relay, as a context manager. `calls` are those since it was last emptied by `take`."""

    def __init__(self, endpoint: Endpoint, file: Path, transport: httpx.BaseTransport | None = None) -> None:
        self.endpoint = endpoint
        self.asked = 0
        """The number of requests that the endpoint received; the others were answered from the file."""
        self._file, self._answers = file, dict[str, tuple[dict[str, Any], float]]()
        self._calls, self._running, self._idle = list[ModelCall](), 0, threading.Condition()
        self._endpoint_lock = threading.Lock()
        self._client = httpx.Client(timeout=_LONGEST, headers=_authorization(endpoint.key), transport=transport)

    def __enter__(self) -> EndpointRelay:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._read_file()
        self._output: TextIO = self._file.open("a", encoding="utf-8")
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.port: int = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._output.close()
        self._client.close()

    def _read_file(self) -> None:
        """Reads the stored answers. A line that an interrupted run did not finish is cut off."""
        text = self._file.read_text(encoding="utf-8") if self._file.exists() else ""
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            self._file.write_text(whole, encoding="utf-8")
        for row in map(json.loads, whole.splitlines()):
            self._answers[row["request"]] = row["answer"], row["seconds"]

    @property
    def url(self) -> str:
        """The base URL for clients, with /v1."""
        return f"http://127.0.0.1:{self.port}/v1"

    def wait(self) -> None:
        """Waits until no request is running. Summaries are begun a moment after a response."""
        time.sleep(_MOMENT)
        with self._idle:
            self._idle.wait_for(lambda: not self._running)

    def take(self) -> list[ModelCall]:
        """Returns the calls since the last time, when no request is running any more."""
        with self._idle:
            self._idle.wait_for(lambda: not self._running)
            calls, self._calls = self._calls, []
            return calls

    def answer(self, body: dict[str, Any], purpose: str) -> tuple[int, dict[str, Any]]:
        """Returns the status and the answer of the endpoint, or of the file, to a request of this purpose."""
        if purpose == TURN:
            return 200, _EMPTY_ANSWER
        body = {**body, "model": self.endpoint.model}
        text = json.dumps(body, sort_keys=True, ensure_ascii=False)
        name = hashlib.sha256(f"{self.endpoint.url}\n{text}".encode()).hexdigest()
        with self._endpoint_lock:
            refusal = None if name in self._answers else self._ask(name, body)
        if refusal is not None:
            return refusal
        answer, seconds = self._answers[name]
        usage = answer.get("usage") or {}
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        messages = json.dumps(body["messages"], ensure_ascii=False)
        tokens = int(usage.get("prompt_tokens", 0)), int(cached), int(usage.get("completion_tokens", 0))
        with self._idle:
            self._calls.append(ModelCall(purpose, *tokens, seconds, messages))
        return 200, answer

    def _ask(self, name: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]] | None:
        """Stores the endpoint's answer; returns the status and the body of a refusal, which is not stored."""
        began = time.monotonic()
        self.asked += 1
        try:
            response = self._client.post(f"{self.endpoint.url}/chat/completions", json=body)
            answer = response.json()
        except (httpx.HTTPError, ValueError) as error:
            return 502, {"error": {"message": str(error), "type": "endpoint"}}
        if response.status_code != 200:
            return response.status_code, answer
        seconds = round(time.monotonic() - began, 2)
        self._answers[name] = answer, seconds
        self._output.write(json.dumps({"request": name, "answer": answer, "seconds": seconds}) + "\n")
        self._output.flush()
        return None

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        relay = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                with relay._idle:
                    relay._running += 1
                try:
                    body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                    status, answer = relay.answer(body, self.headers.get(PURPOSE, SUMMARY))
                finally:
                    with relay._idle:
                        relay._running -= 1
                        relay._idle.notify_all()
                content = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                """Prints nothing."""

        return Handler


@contextmanager
def accordion_before(relay: EndpointRelay, window: int, *, by_model: bool) -> Iterator[str]:
    """Starts Accordion in front of the relay with a window of so many tokens for `MODEL`; gives its base URL.

    `by_model`: the model itself writes summaries, and requests wait for them. Else the extractive writer does.
    """
    models = [(MODEL, window), (WRITER, 32_000)]
    settings = {
        "server": {"tenant_key": "bench"},
        "timeouts": {"read_seconds": _LONGEST},
        "summaries": {"writer": WRITER if by_model else "extractive", "wait_seconds": _LONGEST},
        "model_list": [
            {
                "model_name": name,
                "litellm_params": {"model": f"openai/{name}", "api_base": relay.url},
                "model_info": {"max_input_tokens": size},
            }
            for name, size in models
        ],
    }
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        config = Path(folder) / "config.yaml"
        config.write_text(yaml.safe_dump(settings))
        with serving(ACCORDION, relay.port, pins=Pins(), config=str(config), store="memory") as server:
            yield f"http://127.0.0.1:{server.port}/v1"


def ask(client: httpx.Client, url: str, messages: Messages, purpose: str, session: str, **fields: Any) -> str:
    """Sends one request; returns the text of the answer. Raises httpx.HTTPStatusError."""
    body = {"model": MODEL, "messages": messages, **fields}
    headers = {PURPOSE: purpose, "x-accordion-session": session}
    response = client.post(f"{url}/chat/completions", json=body, headers=headers, timeout=_LONGEST)
    response.raise_for_status()
    return str(response.json()["choices"][0]["message"].get("content") or "")


def answers_file(endpoint: Endpoint) -> Path:
    """Returns the file of an endpoint's answers; delete it to ask again. A password in the URL is not in its name."""
    address, model = re.sub(r"^.*//(?:[^/]*@)?", "", endpoint.url), endpoint.model.rpartition("/")[2]
    name = re.sub(r"[^A-Za-z0-9.-]+", "-", f"{address}-{model}")
    return Path(__file__).parent / ".cache" / name / "answers.jsonl"


def dollars(calls: Sequence[ModelCall], model: str) -> float | None:
    """Returns the cost of calls by the model's list prices; None if it has none."""
    price = ModelPrices().price(model)
    if price is None:
        return None
    total = 0.0
    for call in calls:
        rates = price.rates_for(call.input)
        total += (call.input - call.cached) * rates.input + call.cached * rates.cached + call.output * rates.output
    return total / NANODOLLARS

"""What server/uvicorn_compat.py needs of uvicorn, and the faults of uvicorn that it is there for."""

from __future__ import annotations

import asyncio
import inspect
import logging
from typing import Any

import pytest
import uvicorn
from uvicorn.protocols.http import httptools_impl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets import websockets_sansio_impl
from uvicorn.server import ServerState
from uvicorn.supervisors import multiprocess

from accordion.server import uvicorn_compat
from tests.code_fingerprints import find_changes

CODE = {
    "uvicorn.protocols.http.httptools_impl": {
        "HttpToolsProtocol.__init__": "730c55b265cc",
        "HttpToolsProtocol.connection_made": "1497c2a079be",
        "HttpToolsProtocol.connection_lost": "884224c6f596",
        "HttpToolsProtocol.data_received": "8bffe3dac602",
        "HttpToolsProtocol._unset_keepalive_if_required": "8badb0af6812",
        "HttpToolsProtocol._get_upgrade": "0b6026d23b3e",
        "HttpToolsProtocol._should_upgrade": "41b12938b28e",
        "HttpToolsProtocol._unsupported_upgrade_warning": "c46b8d9cf361",
        "HttpToolsProtocol.handle_websocket_upgrade": "d34c6e2ec7c1",
        "HttpToolsProtocol.on_message_begin": "edabbefc2c67",
        "HttpToolsProtocol.on_headers_complete": "2293b02c6699",
        "HttpToolsProtocol._start_asgi_task": "e851031e86b5",
        "HttpToolsProtocol.on_body": "a8b4e86add6c",
        "HttpToolsProtocol.on_message_complete": "637e321f44da",
        "HttpToolsProtocol.on_response_complete": "d89d3c6380fa",
        "HttpToolsProtocol.shutdown": "1289206de08e",
        "HttpToolsProtocol.timeout_keep_alive_handler": "347bfacb1966",
        "RequestResponseCycle.__init__": "97f9bab075db",
        "RequestResponseCycle.run_asgi": "ea88af1b2d3e",
        "RequestResponseCycle.send": "e5eadbda9b38",
        "RequestResponseCycle.receive": "44572ed51940",
    },
    "uvicorn.protocols.http.flow_control": {
        "FlowControl": "09edfe259b22",
    },
    "uvicorn.protocols.websockets.websockets_sansio_impl": {
        "WebSocketsSansIOProtocol.shutdown": "4cf457a1f59d",
        "WebSocketsSansIOProtocol.send_receive_event_to_app": "ee7442e15ed2",
        "WebSocketsSansIOProtocol.handle_parser_exception": "6a2593c7c352",
    },
    "uvicorn.server": {
        "Server.startup": "b5ca8e4833b7",
        "Server.__init__": "142f5f5dc820",
        "Server.shutdown": "a60c4106424d",
        "Server.handle_exit": "33f9602fb639",
        "Server.capture_signals": "a7456eb97864",
    },
    "uvicorn.supervisors.multiprocess": {
        "Process": "534a2d750adc",
        "Multiprocess.init_processes": "a5c8909c02de",
        "Multiprocess.keep_subprocess_alive": "2a6ff8888227",
        "Multiprocess.handle_hup": "6c0e192e7588",
        "Multiprocess.__init__": "806c100b99d2",
    },
}


def test_overridden_code_is_as_it_was() -> None:
    assert find_changes(CODE) == {}


def test_every_override_has_a_fingerprint() -> None:
    known = {name for codes in CODE.values() for name in codes}
    for ours in vars(uvicorn_compat).values():
        if not isinstance(ours, type) or ours.__module__ != uvicorn_compat.__name__:
            continue
        (base,) = ours.__bases__
        if not base.__module__.startswith("uvicorn."):
            continue
        for name, attribute in vars(ours).items():
            theirs = getattr(base, name, None)
            if callable(attribute) and callable(theirs) and getattr(theirs, "__module__", "").startswith("uvicorn."):
                assert {f"{base.__name__}.{name}", base.__name__} & known, (ours, name)


def test_a_request_cycle_can_become_ours() -> None:
    assert "__slots__" not in vars(RequestResponseCycle)
    assert uvicorn_compat.ResponseCycle.__basicsize__ == RequestResponseCycle.__basicsize__


def test_the_supervisor_makes_its_workers_by_a_name_of_its_module() -> None:
    assert "Process" in multiprocess.Multiprocess.init_processes.__code__.co_names
    assert "Process" in multiprocess.Multiprocess.keep_subprocess_alive.__code__.co_names


def test_dropped_log_lines_are_uvicorns() -> None:
    sources = [inspect.getsource(module) for module in (httptools_impl, websockets_sansio_impl)]
    for message in uvicorn_compat._IGNORED_MESSAGES:
        assert any(message in source for source in sources), message
    assert '"WebSocket %s"' in sources[1]


# -- the reasons ----------------------------------------------------------------------------------------------------


class Wire(asyncio.Transport):
    """A transport that stores what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def close(self) -> None:
        self.written += b"<closed>"

    def is_closing(self) -> bool:
        return self.written.endswith(b"<closed>")

    def get_extra_info(self, name: str, default: object = None) -> Any:
        return default

    def pause_reading(self) -> None:
        """Does nothing."""

    def resume_reading(self) -> None:
        """Does nothing."""


async def answer(*pieces: bytes, status: int = 200, headers: tuple[tuple[bytes, bytes], ...] = ()) -> tuple[bytes, Any]:
    """Returns what uvicorn itself writes for a request that comes in pieces, and the protocol."""
    bodies: list[bytes] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        more = True
        while more:
            message = await receive()
            bodies.append(message.get("body", b""))
            more = message.get("more_body", False)
        await send({"type": "http.response.start", "status": status, "headers": [*headers]})
        await send({"type": "http.response.body", "body": b"".join(bodies)})

    config = uvicorn.Config(app, log_config=None, ws="none", lifespan="off")
    config.load()
    wire, protocol = Wire(), HttpToolsProtocol(config, ServerState(), {})
    protocol.connection_made(wire)
    for piece in pieces:
        protocol.data_received(piece)
        await asyncio.sleep(0.01)
    protocol._unset_keepalive_if_required()
    return wire.written, protocol


JAVA = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMA\r\n"
"""The headers with which Java's HttpClient offers HTTP/2."""


async def test_uvicorn_drops_the_body_of_javas_client() -> None:
    written, _ = await answer(b"POST / HTTP/1.1\r\nhost: h\r\n" + JAVA + b"content-length: 5\r\n\r\nhello")
    assert b"hello" not in written


async def test_uvicorn_answers_invalid_http_in_plain_text() -> None:
    written, _ = await answer(b"\x16\x03\x01 TLS")
    assert b"text/plain" in written


async def test_uvicorn_sends_chunks_to_http_1_0() -> None:
    written, _ = await answer(b"GET / HTTP/1.0\r\n\r\n")
    assert b"transfer-encoding: chunked" in written


async def test_uvicorn_fails_on_a_control_character_in_a_header(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.CRITICAL):
        written, _ = await answer(b"GET / HTTP/1.1\r\nhost: h\r\n\r\n", headers=((b"x-note", b"a\x01b"),))
    assert written == b"<closed>"


async def test_uvicorn_takes_two_hosts() -> None:
    written, _ = await answer(b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n")
    assert written.startswith(b"HTTP/1.1 200")


async def test_uvicorn_sends_100_to_http_1_0() -> None:
    head = b"POST / HTTP/1.0\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n"
    written, _ = await answer(head, b"ok")
    assert written.startswith(b"HTTP/1.1 100")


async def test_uvicorn_has_no_limit_for_a_head_and_no_time_limit_for_a_silent_client() -> None:
    written, protocol = await answer(b"GET / HTTP/1.1\r\nx: " + b"a" * 300_000)
    assert written == b""
    assert protocol.timeout_keep_alive_task is None


async def test_uvicorn_leaves_a_refused_upload_unfinished() -> None:
    _, protocol = await answer(b"GET / HTTP/1.1\r\nhost: h\r\n\r\n")
    cycle = protocol.cycle
    cycle.more_body, cycle.response_complete = True, True
    protocol.on_message_complete()
    assert cycle.more_body


async def test_uvicorn_does_not_tell_a_running_request_that_its_pipelining_client_left() -> None:
    disconnects: list[str] = []

    async def app(scope: Any, receive: Any, _send: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        disconnects.append(scope["path"])

    config = uvicorn.Config(app, log_config=None, ws="none", lifespan="off")
    config.load()
    protocol = HttpToolsProtocol(config, ServerState(), {})
    protocol.connection_made(Wire())
    for path in (b"/first", b"/second"):
        protocol.data_received(b"GET " + path + b" HTTP/1.1\r\nhost: h\r\n\r\n")
    await asyncio.sleep(0.01)
    protocol.connection_lost(None)
    await asyncio.sleep(0.01)
    assert disconnects == []
    for task in protocol.tasks:
        task.cancel()


class FakeProcess:
    """A process that runs, until it has ended."""

    has_ended = False

    def is_alive(self) -> bool:
        return not self.has_ended


def worker_of(kind: type[multiprocess.Process]) -> multiprocess.Process:
    """A worker that has not answered yet."""
    made = kind(uvicorn.Config("app", log_config=None), [])
    made.process = FakeProcess()  # type: ignore[assignment]
    return made


def test_uvicorn_takes_a_worker_that_is_still_starting_for_dead() -> None:
    assert not worker_of(multiprocess.Process).is_alive(timeout=0)


def test_a_worker_may_take_its_time_to_start_and_then_has_to_answer() -> None:
    worker = worker_of(uvicorn_compat.Worker)
    assert worker.is_alive(timeout=0)
    assert worker.is_alive(timeout=0)
    assert worker.child_conn.recv() == b"ping"
    worker.child_conn.send(False)
    assert worker.is_alive(timeout=0)
    assert not worker.is_alive(timeout=0)


def test_a_worker_that_ends_while_it_starts_is_dead_at_once() -> None:
    worker = worker_of(uvicorn_compat.Worker)
    assert worker.is_alive(timeout=0)
    worker.process.has_ended = True  # type: ignore[attr-defined]
    assert not worker.is_alive(timeout=0)


def test_a_worker_that_does_not_start_in_time_is_dead() -> None:
    worker = worker_of(uvicorn_compat.Worker)
    worker.start_seconds = 0.0  # type: ignore[attr-defined]
    assert not worker.is_alive(timeout=0)

import asyncio
import io
import json
import logging

import pytest
import uvicorn
from hypothesis import given
from hypothesis import strategies as st

from accordion.server.logging_setup import JsonFormatter, TextFormatter, configure, redact
from accordion.server.uvicorn_compat import LineFilter, Server

LOGGERS = ("", "accordion", "uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi")


@pytest.fixture(autouse=True)
def _as_before():
    """What `configure` sets is the process's; put it back for the tests that follow."""
    loggers = [logging.getLogger(name) for name in LOGGERS]
    before = [(log, log.level, log.propagate, log.handlers[:], log.filters[:]) for log in loggers]
    yield
    for log, level, propagate, handlers, filters in before:
        log.setLevel(level)
        log.propagate, log.handlers, log.filters = propagate, handlers, filters


def lines(*, level="info", form="text", say) -> list[str]:
    stream = io.StringIO()
    configure(level, form, stream)
    say()
    return stream.getvalue().split("\n")[:-1]


def say(name="accordion.forward", level=logging.INFO, message="hello %s", args=("you",), **given_extra):
    return lambda: logging.getLogger(name).log(level, message, *args, extra=given_extra)


def test_a_text_line_has_time_level_logger_request_and_fields():
    (line,) = lines(say=say(request_id="req_1", status=200, model="m"))
    time, rest = line.split(" ", 1)
    assert rest == "INFO    accordion.forward [req_1]: hello you status=200 model=m"
    assert time.endswith("Z")
    assert len(time) == len("2026-01-01T00:00:00.000Z")


def test_a_json_line_has_the_same_as_an_object():
    (line,) = lines(form="json", say=say(request_id="req_1", status=200, stream=True))
    entry = json.loads(line)
    assert entry.pop("time").endswith("Z")
    assert entry == {
        "level": "info", "logger": "accordion.forward", "message": "hello you",
        "request_id": "req_1", "status": 200, "stream": True,
    }  # fmt: skip


def test_uvicorns_logger_is_not_named_after_errors():
    start = logging.LogRecord("uvicorn.error", logging.INFO, __file__, 1, "Started", (), None)
    assert " uvicorn: Started" in TextFormatter().format(start)
    assert json.loads(JsonFormatter().format(start))["logger"] == "uvicorn"


@pytest.mark.parametrize("form", ["text", "json"])
def test_what_is_not_plain_or_too_long_is_not_logged_whole(form):
    logged = "\n".join(
        lines(form=form, say=say(message="x" * 5000, args=(), body=b"content", parts=["content"], long="y" * 900))
    )
    assert "content" not in logged
    assert "x" * 2001 not in logged
    assert "y" * 201 not in logged
    assert "(5000 characters)" in logged


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_field_cannot_take_the_place_of_a_lines_own(form):
    logged = lines(form=form, say=say(level_name="x", logger="mine", time="never"))[0]
    assert "accordion.forward" in logged
    if form == "json":
        assert json.loads(logged)["logger"] == "accordion.forward"


def test_a_message_cannot_begin_a_line_of_its_own():
    assert len(lines(say=say(message="a\nb\r\x1b[2K\u2028c", args=(), path="d\ne"))) == 1


def test_a_traceback_follows_indented_or_as_a_field_without_credentials():
    def fail():
        try:
            raise ValueError("Bearer abcdefgh1234")
        except ValueError:
            logging.getLogger("accordion").exception("it failed")

    text = lines(say=fail)
    assert text[0].endswith("accordion: it failed")
    assert all(line.startswith("    ") for line in text[1:])
    assert text[-1] == "    ValueError: Bearer ***"
    (line,) = lines(form="json", say=fail)
    assert json.loads(line)["traceback"].endswith("ValueError: Bearer ***")


def test_the_level_is_the_proxys_and_libraries_speak_from_warning_on():
    def all_speak():
        for name in ("accordion.x", "uvicorn.error", "httpx"):
            for level in (logging.DEBUG, logging.INFO, logging.WARNING):
                logging.getLogger(name).log(level, "%s %s", name, level)

    def heard(level):
        return [line.partition(": ")[2] for line in lines(level=level, say=all_speak)]

    ours = [f"accordion.x {level}" for level in (10, 20, 30)]
    # Below info uvicorn would show heads and frames of WebSockets.
    assert heard("debug") == [*ours, "uvicorn.error 20", "uvicorn.error 30", "httpx 30"]
    assert heard("warning") == ["accordion.x 30", "uvicorn.error 30", "httpx 30"]
    assert heard("error") == ["httpx 30"]


def test_configuring_again_replaces_what_was_before():
    first = io.StringIO()
    configure("info", "text", first)
    assert len(lines(form="json", say=say())) == 1
    assert first.getvalue() == ""


def test_a_second_server_adds_no_second_filter():
    for _ in range(2):
        Server(uvicorn.Config("app"))
    filters = logging.getLogger("uvicorn.error").filters
    assert len([each for each in filters if isinstance(each, LineFilter)]) == 1


def test_uvicorn_writes_no_access_lines():
    assert lines(level="debug", say=lambda: logging.getLogger("uvicorn.access").info("GET /")) == []
    assert not logging.getLogger("uvicorn.access").hasHandlers()


def test_a_cut_reply_is_no_error_of_the_server_but_all_else_is():
    Server(uvicorn.Config("app"))

    def server():
        logging.getLogger("uvicorn.error").error("ASGI callable returned without completing response.")
        logging.getLogger("uvicorn.error").error("ASGI callable returned without starting response.")

    assert [line.partition(": ")[2] for line in lines(say=server)] == [
        "ASGI callable returned without starting response."
    ]


async def test_uvicorn_itself_is_quiet_about_a_reply_that_was_cut_and_about_access():
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"9")]})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})

    stream = io.StringIO()
    configure("info", "text", stream)
    server = Server(uvicorn.Config(app, port=0, log_config=None, lifespan="off"))
    server.config.load()
    server.lifespan = server.config.lifespan_class(server.config)
    await server.startup()
    reader, writer = await asyncio.open_connection(*server.servers[0].sockets[0].getsockname())
    writer.write(b"GET /secret-path HTTP/1.1\r\nhost: h\r\n\r\n")
    assert (await reader.read()).endswith(b"half")
    writer.close()
    await server.shutdown()
    logged = stream.getvalue()
    assert "Uvicorn running" in logged
    assert "without completing" not in logged
    assert "secret-path" not in logged


def test_a_credential_that_is_cut_off_does_not_show_in_part():
    logged = lines(say=say(message="%s", args=("x " * 3_995 + "sk-" + "Q" * 90,)))[0]
    assert "Q" not in logged


SECRET = "Zq8hushZq8hush4711"


@pytest.mark.parametrize(
    "text",
    [
        f"sk-{SECRET}",
        f"sk-ant-api03-{SECRET}-x_y",
        f"sk-proj-{SECRET}",
        f"key was 'gsk_{SECRET}'",
        f"AIza{SECRET}",
        f"Bearer {SECRET}",
        f"authorization: Basic {SECRET}=",
        f"Authorization: {SECRET}",
        f"x-api-key: {SECRET}",
        f"X-Api-Key={SECRET}",
        f"{{'x-api-key': '{SECRET}'}}",
        f'{{"api_key": "{SECRET}"}}',
        f'{{\\"api_key\\": \\"{SECRET}\\"}}',
        f"[(b'x-api-key', b'{SECRET}'), (b'a', b'b')]",
        f"[(b'authorization', b'Bearer {SECRET}')]",
        f"https://user:{SECRET}@host/v1",
        f"redis://:{SECRET}@h:6379/0",
        f"/v1/models?api_key={SECRET}&x=1",
        f"aws_secret_access_key={SECRET}",
        f"eyJhbGciOi.{SECRET}.{SECRET}",
        f"set-cookie: session={SECRET}",
    ],
)
def test_a_credential_is_redacted_anywhere_in_a_line(text):
    assert SECRET not in redact(text)
    for form in ("text", "json"):
        logged = lines(form=form, say=say(message="%s", args=(text,), note=text))
        assert "***" in logged[0]
        assert SECRET not in logged[0]


def test_a_field_with_a_telling_name_is_redacted():
    assert SECRET not in lines(say=say(api_key=SECRET))[0]


@pytest.mark.parametrize(
    "text",
    [
        "task-runner took 3 s",
        "risk-assessment-of-many-words",
        "tokens=12",
        "a basic idea",
        "http://h:1/v1/x@y",
        "key: 5",
    ],
)
def test_plain_words_are_left_alone(text):
    assert redact(text) == text


@given(st.text(max_size=60), st.text(max_size=60))
def test_any_text_gives_one_line_that_reads_back(message, field):
    (line,) = lines(form="json", say=say(message="%s", args=(message,), note=field))
    assert set(json.loads(line)) == {"time", "level", "logger", "message", "note"}
    assert len(lines(say=say(message="%s", args=(message,), note=field))) == 1

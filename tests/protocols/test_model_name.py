"""The model that a body names which no protocol reads: a form's or a JSON document's, also where only its beginning is
there."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.model.http import Inbound
from accordion.protocols.model_name import (
    model_in_body,
    model_in_target,
    replace_model_in_body,
    replace_model_in_target,
)

FORM = b'multipart/form-data; boundary="x--y"'
PART = b'--x--y\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n'
HEAD = b'Content-Disposition: form-data; name="file"; filename="a; name=\\"model\\""\r\nContent-Type: audio/wav\r\n\r\n'
FILE = b"--x--y\r\n" + HEAD + b"%b\r\n"
END = b"--x--y--\r\n"


@pytest.mark.parametrize("kind", [FORM, b"Multipart/Form-Data; charset=utf-8; Boundary=x--y"])
@pytest.mark.parametrize("before", [b"", PART % (b"prompt", b""), FILE % b'\r\n--x--\r\nname="model"', b"preamble\r\n"])
def test_a_forms_model_is_found_and_replaced_alone(kind: bytes, before: bytes) -> None:
    body = before + PART % (b"model", b"smart") + FILE % b"RIFF" + END
    assert model_in_body(body, kind) == "smart"
    assert replace_model_in_body(body, kind, "gpt-é") == body.replace(b"\r\nsmart\r\n", "\r\ngpt-é\r\n".encode())


@pytest.mark.parametrize(
    "disposition", [b"content-disposition:form-data;name=model", b'CONTENT-DISPOSITION: form-data; name="model" ; x=y']
)
def test_a_forms_heads_may_be_written_in_other_ways(disposition: bytes) -> None:
    body = b"--x--y\r\nContent-Type: text/plain\r\n" + disposition + b"\r\n\r\nsmart\r\n" + END
    assert model_in_body(body, FORM) == "smart"


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (PART % (b"model", b"smart") + END, b"multipart/form-data"),
        (PART % (b"model", b"smart") + END, b"multipart/form-data; boundary=other"),
        (PART % (b"models", b"smart") + END, FORM),
        (PART % (b"model", b"\xff") + END, FORM),
        (PART % (b"prompt", b'{"model": "smart"}') + END, FORM),
        (END + PART % (b"model", b"smart"), FORM),
        (FILE % (PART % (b"model", b"smart")).replace(b"--x--y", b"--x--z") + END, FORM),
        (b"", FORM),
        (b"", b""),
        (b"RIFF\x00\x00", b"audio/wav"),
    ],
)
def test_a_body_without_a_model_names_none(body: bytes, kind: bytes) -> None:
    assert model_in_body(body, kind) is None


@given(st.integers(0, 200))
def test_only_complete_fields_of_a_truncated_body_count(end: int) -> None:
    form = PART % (b"prompt", b"hello") + PART % (b"model", b"smart") + FILE % b"RIFF" + END
    begun = form[:end]
    there = end >= form.index(b"smart\r\n--x--y") + len(b"smart\r\n--x--y")
    assert model_in_body(begun, FORM) == ("smart" if there else None)


@given(st.integers(0, 200))
def test_of_the_beginning_of_a_document_too(end: int) -> None:
    document = b'{"a": {"model": "b"}, "model": "smart", "input": "say \\"model\\": \\"c\\", {\\"model\\": \\"d\\"}"}'
    begun = document[:end]
    there = end >= document.index(b'"smart"') + len(b'"smart"')
    assert model_in_body(begun, b"text/plain") == ("smart" if there else None)
    if there:
        assert replace_model_in_body(begun, b"", "new") == begun.replace(b'"smart"', b'"new"')


def inbound(target: str, method: str = "GET") -> Inbound:
    path, _, query = target.partition("?")
    return Inbound(method, path, query, (), b"", "req-1")


@pytest.mark.parametrize(
    ("target", "named", "renamed"),
    [
        ("/v1/models/smart", "smart", "/v1/models/gpt-%C3%A9%2F1:x"),
        ("/v1/models/a%2Fb%20c?x=1", "a/b c", "/v1/models/gpt-%C3%A9%2F1:x?x=1"),
        ("/v1/models/a/b", "a/b", "/v1/models/gpt-%C3%A9%2F1:x"),
        ("/v1/realtime?model=smart", "smart", "/v1/realtime?model=gpt-%C3%A9%2F1%3Ax"),
        ("/v1/realtime?a=%20&model=a%2Fb+c&model=z", "a/b c", "/v1/realtime?a=%20&model=gpt-%C3%A9%2F1%3Ax&model=z"),
        ("/v1/realtime/calls?model=smart", "smart", "/v1/realtime/calls?model=gpt-%C3%A9%2F1%3Ax"),
    ],
)
def test_a_target_may_name_a_model_and_keeps_all_else(target: str, named: str, renamed: str) -> None:
    assert model_in_target(inbound(target)) == named
    assert replace_model_in_target(target, "gpt-é/1:x") == renamed


@pytest.mark.parametrize(
    "target",
    ["/v1/models", "/v1/models/", "/v1/models?model=smart", "/v1/realtime", "/v1/realtime?models=smart",
     "/v1/realtime?submodel=smart", "/v1/realtime?model=", "/v1/realtimes?model=smart", "/v1/files?model=smart"],
)  # fmt: skip
def test_a_target_that_names_no_model_names_none(target: str) -> None:
    assert model_in_target(inbound(target)) is None


def test_what_would_delete_a_model_is_not_taken_for_one_of_ours() -> None:
    assert model_in_target(inbound("/v1/models/smart", "DELETE")) is None

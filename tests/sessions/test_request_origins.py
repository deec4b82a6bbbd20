import pytest

from accordion.sessions.request_origins import HTTP_1_0_HEADER, find_forwarding_sign, is_loopback_url, is_web_site


@pytest.mark.parametrize(
    "origin",
    [b"", b"http://localhost:3000", b"http://LOCALHOST", b"https://tauri.localhost", b"http://127.0.0.1:8787",
     b"http://127.8.9.1", b"http://[::1]:3000", b"app://obsidian.md", b"vscode-webview://1a2b", b"file://"],
)  # fmt: skip
def test_an_origin_on_this_machine_is_no_web_site(origin: bytes) -> None:
    assert not is_web_site(origin)


@pytest.mark.parametrize(
    "origin",
    [b"https://evil.example", b"HTTP://evil.example:8787", b"null", b"http://localhost.evil.example", b"http://[",
     b"http://127.0.0.1.evil.example", b"http://notlocalhost", b"http://192.168.0.7", b"http://0x7f.1", b"http://",
     b"http://localhost@evil.example", b"http://\xff",
     b"http://[::1].evil.example", b"http://[::1].evil.example:8787", b"http://localhost:8787/", b"http://[::1"],
)  # fmt: skip
def test_any_other_origin_is_a_web_site(origin: bytes) -> None:
    assert is_web_site(origin)


def test_a_name_with_its_dot_is_the_same_name() -> None:
    assert is_loopback_url("//localhost.:8787")
    assert not is_loopback_url("//:8787")


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({b"x-forwarded-for": b"203.0.113.7"}, "it has the header x-forwarded-for"),
        ({b"x-forwarded-proto": b"https", b"host": b"127.0.0.1:8787"}, "it has the header x-forwarded-proto"),
        ({b"forwarded": b"for=203.0.113.7"}, "it has the header forwarded"),
        ({b"via": b"1.1 caddy"}, "it has the header via"),
        ({b"x-real-ip": b""}, "it has the header x-real-ip"),
        ({b"cf-connecting-ip": b"203.0.113.7"}, "it has the header cf-connecting-ip"),
        ({b"host": b"ai.example"}, "its Host is 'ai.example'"),
        ({b"host": b"192.168.0.7:8787"}, "its Host is '192.168.0.7:8787'"),
        ({b"host": b"x" * 10_000}, f"its Host is '{'x' * 300}'"),
        ({b"host": b"127.0.0.1:8787", HTTP_1_0_HEADER: b"1"}, "it is in HTTP/1.0"),
    ],
)
def test_a_header_a_foreign_host_or_http_1_0_shows_another_proxy(headers: dict[bytes, bytes], words: str) -> None:
    assert find_forwarding_sign(headers) == words


@pytest.mark.parametrize(
    "host", [b"127.0.0.1:8787", b"localhost", b"[::1]:8787", b"localhost:9000", b"accordion.localhost"]
)
def test_a_client_or_a_tunnel_of_this_machine_shows_none(host: bytes) -> None:
    headers = {b"host": host, b"user-agent": b"x", b"authorization": b"Bearer a", b"x-request-id": b"1", b"te": b"x"}
    assert find_forwarding_sign(headers) == ""

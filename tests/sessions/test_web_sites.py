import pytest

from accordion.sessions.tenants import is_loopback_url, is_web_site


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

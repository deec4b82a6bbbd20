import pytest

from proxy.wiring import is_loopback


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "localhost", "::1", "[::1]"])
def test_these_addresses_are_this_machines_alone(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "127.example.com", "localhost.example.com", "::1234", ""])
def test_these_are_not(host: str) -> None:
    assert not is_loopback(host)

import pytest

from accordion.model.errors import Unauthorized
from accordion.model.tenant import TenantScope
from accordion.sessions.tenants import Caller, ProxyKey, Tenants, read_credential

SECRET = b"s" * 32
KEYS = (ProxyKey("red", "key-of-red"), ProxyKey("blue", "key-of-blue"))


def bearer(key: str) -> dict[bytes, bytes]:
    return {b"authorization": f"Bearer {key}".encode()}


def test_on_a_loopback_address_there_is_one_tenant() -> None:
    tenants = Tenants(SECRET)
    assert tenants.identify(bearer("a")).tenant == tenants.identify({}).tenant
    assert tenants.identify({}).tenant.name == "default"


def test_elsewhere_a_tenant_is_the_keyed_hash_of_its_credential() -> None:
    tenants = Tenants(SECRET, loopback=False)
    one, two = tenants.identify(bearer("a")), tenants.identify({b"x-api-key": b"b"})
    assert one.tenant.name != two.tenant.name
    assert one.tenant.key != two.tenant.key
    assert one.tenant == tenants.identify({b"x-api-key": b"a"}).tenant
    assert one.tenant.name != Tenants(b"t" * 32, loopback=False).identify(bearer("a")).tenant.name
    assert one.tenant.name not in ("a", "default")


@pytest.mark.parametrize(
    "headers",
    [bearer("key-of-blue"), {b"x-api-key": b"key-of-blue"}, {b"api-key": b"key-of-blue"}],
)
def test_a_proxy_key_names_its_tenant(headers: dict[bytes, bytes]) -> None:
    caller = Tenants(SECRET, KEYS).identify(headers)
    assert (caller.tenant.name, caller.has_proxy_key, caller.credential) == ("blue", True, "")


def test_a_proxy_key_beside_a_credential_leaves_the_credential_to_the_provider() -> None:
    caller = Tenants(SECRET, KEYS).identify({**bearer("sk-own"), b"x-accordion-key": b"key-of-red"})
    assert (caller.tenant.name, caller.has_proxy_key, caller.credential) == ("red", True, "sk-own")


@pytest.mark.parametrize("headers", [{}, bearer("other"), {**bearer("key-of-red"), b"x-accordion-key": b"other"}])
def test_where_keys_are_configured_nobody_enters_without_one(headers: dict[bytes, bytes]) -> None:
    with pytest.raises(Unauthorized, match="x-accordion-key"):
        Tenants(SECRET, KEYS).identify(headers)


def test_no_key_and_no_credential_shows_in_a_repr() -> None:
    assert "key-of-red" not in repr(KEYS)
    assert "sk-own" not in repr(Caller(TenantScope("t", b"space"), True, "sk-own"))
    assert "space" not in repr(Caller(TenantScope("t", b"space"), True, "sk-own"))


def test_a_credential_is_found_in_each_of_the_usual_places() -> None:
    assert read_credential(bearer("k")) == "k"
    assert read_credential({b"authorization": b"Basic abc"}) == "Basic abc"
    assert read_credential({b"x-api-key": b"k"}) == "k"
    assert read_credential({}) == ""


def test_a_web_site_that_asks_through_a_browser_is_not_who_works_at_this_machine() -> None:
    tenants = Tenants(SECRET)
    site = tenants.identify({**bearer("a"), b"origin": b"https://evil.example"})
    assert (site.tenant, site.is_local) == (Tenants(SECRET, loopback=False).identify(bearer("a")).tenant, False)
    own = tenants.identify({**bearer("a"), b"origin": b"http://localhost:3000"})
    assert (own.tenant.name, own.is_local) == ("default", True)

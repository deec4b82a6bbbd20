import pytest

from accordion.model.errors import KeysUnavailable, Unauthorized
from accordion.model.tenant import TenantScope
from accordion.sessions.proxy_keys import CreatedKeys, ProxyKey
from accordion.sessions.tenants import Caller, Tenants, read_credential
from accordion.stores.memory_store import InMemoryStore
from tests.fakes import FakeClock

SECRET = b"s" * 32
KEYS = (ProxyKey("red", "key-of-red"), ProxyKey("blue", "key-of-blue"))


def bearer(key: str) -> dict[bytes, bytes]:
    return {b"authorization": f"Bearer {key}".encode()}


def test_on_a_loopback_address_there_is_one_tenant() -> None:
    tenants = Tenants(SECRET)
    assert tenants.identify(bearer("a")).tenant == tenants.identify({}).tenant
    assert tenants.identify({}).tenant.name == "default"


@pytest.mark.parametrize("headers", [{}, {b"cookie": b"session=1"}, {b"authorization": b""}])
def test_elsewhere_a_caller_without_a_credential_is_anonymous(headers: dict[bytes, bytes]) -> None:
    assert Tenants(SECRET, loopback=False).identify(headers).is_anonymous
    assert not Tenants(SECRET, loopback=False).identify({**headers, **bearer("a")}).is_anonymous
    assert not Tenants(SECRET).identify(headers).is_anonymous


def test_a_subprotocol_may_hold_a_proxy_key() -> None:
    tenants = Tenants(SECRET, (ProxyKey("team", "key.of-team-0123456789"),))
    assert tenants.contains_proxy_key("openai-insecure-api-key.key.of-team-0123456789")
    assert tenants.contains_proxy_key("key.of-team-0123456789")
    assert not tenants.contains_proxy_key("openai-insecure-api-key.sk-own")


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
def test_with_configured_keys_nobody_enters_without_one(headers: dict[bytes, bytes]) -> None:
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


FORWARDED = {b"host": b"127.0.0.1:8787", b"x-forwarded-for": b"203.0.113.7"}


def test_a_request_through_another_proxy_belongs_to_the_tenant_of_its_credential() -> None:
    tenants = Tenants(SECRET, owner_token="token")
    one, two = tenants.identify({**bearer("a"), **FORWARDED}), tenants.identify({**bearer("b"), **FORWARDED})
    assert (one.is_local, one.tenant) == (False, Tenants(SECRET, loopback=False).identify(bearer("a")).tenant)
    assert one.tenant == tenants.identify({**bearer("a"), b"host": b"ai.example"}).tenant
    assert len({one.tenant, two.tenant, tenants.identify(bearer("a")).tenant}) == 3
    # The owner's token does not make it this machine's.
    assert tenants.identify({**bearer("a"), **FORWARDED, b"x-accordion-token": b"token"}).tenant == one.tenant


def test_the_first_request_through_another_proxy_is_logged_with_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    tenants = Tenants(SECRET)
    tenants.identify(bearer("a"))
    assert caplog.text == ""
    for _ in range(3):
        tenants.identify({**bearer("sk-secret"), **FORWARDED})
    (record,) = caplog.records
    assert "x-forwarded-for" in record.getMessage()
    assert "Configure proxy_keys" in record.getMessage()
    assert "203.0.113.7" not in record.getMessage()
    assert "sk-secret" not in record.getMessage()


@pytest.mark.parametrize("tenants", [Tenants(SECRET, KEYS), Tenants(SECRET, loopback=False)])
def test_another_proxy_changes_nothing_where_callers_are_told_apart(
    tenants: Tenants, caplog: pytest.LogCaptureFixture
) -> None:
    headers = bearer("key-of-blue")
    assert tenants.identify({**headers, **FORWARDED}) == tenants.identify(headers)
    assert caplog.text == ""


ADMIN = "admin-key-of-this-proxy"


async def test_a_created_key_names_its_tenant_and_goes_to_no_provider() -> None:
    created = CreatedKeys(InMemoryStore(), FakeClock())
    await created.poll()
    record, key = await created.create("green")
    tenants = Tenants(SECRET, KEYS, admin_key=ADMIN, created=created)
    caller = tenants.identify(bearer(key))
    assert (caller.tenant.name, caller.has_proxy_key, caller.credential) == ("green", True, "")
    assert tenants.identify(bearer("key-of-red")).tenant.name == "red"
    await created.revoke(record.id)
    with pytest.raises(Unauthorized):
        tenants.identify(bearer(key))
    # A key that was valid once is no provider's either.
    assert tenants.is_proxy_key(key.encode())
    assert tenants.identify({**bearer(key), b"x-accordion-key": b"key-of-red"}).credential == ""


async def test_without_an_admin_key_no_created_key_is_valid() -> None:
    created = CreatedKeys(InMemoryStore(), FakeClock())
    await created.poll()
    _, key = await created.create("green")
    with pytest.raises(Unauthorized):
        Tenants(SECRET, KEYS, created=created).identify(bearer(key))


def test_with_an_admin_key_nobody_enters_without_a_proxy_key() -> None:
    tenants = Tenants(SECRET, admin_key=ADMIN, created=CreatedKeys(InMemoryStore(), FakeClock()))
    assert (tenants.has_proxy_keys, tenants.is_local_only) == (True, False)
    for headers in ({}, bearer("sk-own"), bearer(ADMIN)):
        with pytest.raises(Unauthorized):
            tenants.identify(headers)
    assert tenants.is_proxy_key(f"Bearer {ADMIN}".encode())


def test_the_admin_key_opens_the_administrators_routes_and_no_other_key_does() -> None:
    tenants = Tenants(SECRET, KEYS, admin_key=ADMIN)
    for headers in (bearer(ADMIN), {b"x-api-key": ADMIN.encode()}, {b"x-accordion-key": ADMIN.encode()}):
        tenants.check_admin(headers)
    for headers in ({}, bearer("key-of-red"), bearer(ADMIN[:-1]), {**bearer(ADMIN), b"x-accordion-key": b"key-of-red"}):
        with pytest.raises(Unauthorized, match="admin_key"):
            tenants.check_admin(headers)
    for headers in ({}, bearer(""), bearer("key-of-red")):
        with pytest.raises(Unauthorized, match="set `admin_key`"):
            Tenants(SECRET, KEYS).check_admin(headers)


async def test_while_it_is_not_known_whether_a_key_is_valid_its_caller_is_not_authorized() -> None:
    store, clock = InMemoryStore(), FakeClock()
    _, key = await CreatedKeys(store, clock).create("green")
    tenants = Tenants(SECRET, KEYS, admin_key=ADMIN, created=CreatedKeys(store, clock))
    with pytest.raises(KeysUnavailable):
        tenants.identify(bearer(key))
    assert not tenants.authorizes(bearer(key))
    assert tenants.authorizes(bearer("key-of-red"))


async def test_a_ticket_of_a_created_key_ends_with_the_key() -> None:
    created = CreatedKeys(InMemoryStore(), FakeClock())
    await created.poll()
    (record, key), (_, other_key) = await created.create("green"), await created.create("blue")
    tenants = Tenants(SECRET, KEYS, admin_key=ADMIN, created=created)
    ticket, other_ticket = tenants.issue_ticket(key, 1_000.0), tenants.issue_ticket(other_key, 1_000.0)
    assert ticket is not None
    assert other_ticket is not None
    assert key.split("-", 2)[2] not in ticket
    caller = tenants.find_by_ticket(ticket, 999.0)
    assert caller is not None
    assert caller.tenant.name == "green"
    expiry, key_id, signature = ticket.split(".")
    for forged in (
        f"{expiry}.red.{signature}", f"fff.{key_id}.{signature}", f"{expiry}.{key_id}.", f"{expiry}.{signature}",
        f"{expiry}.{key_id}.{other_ticket.split('.')[2]}", "", "...", f"{expiry}.{'x' * 10_000}.{signature}",
    ):  # fmt: skip
        assert tenants.find_by_ticket(forged, 999.0) is None
    await created.revoke(record.id)
    assert tenants.find_by_ticket(ticket, 999.0) is None

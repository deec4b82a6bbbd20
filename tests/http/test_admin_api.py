"""The administrators' API: proxy keys are created, listed and revoked with the administrator's key, and no other."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from starlette.testclient import TestClient

from accordion.accounting.key_limits import KeyLimits
from accordion.features.page.addresses import SIGN_IN, SIGN_OUT
from accordion.sessions.proxy_keys import ProxyKey
from tests.fakes import FakeReply
from tests.holdouts import groups, spread, write_sessions
from tests.http.api_client import client, location
from tests.pipeline_setup import CHAT, PipelineSetup

ADMIN = "admin-key-of-this-proxy"
AS_ADMIN = {"authorization": f"Bearer {ADMIN}"}
KEYS = (ProxyKey("one", "key-one"), ProxyKey("two", "key-two"))
BODY = {"model": "gpt-5", "messages": [{"role": "user", "content": "Hello."}]}


def setup_with_keys() -> PipelineSetup:
    return PipelineSetup(keys=KEYS, admin_key=ADMIN)


async def test_a_key_is_created_used_listed_and_revoked() -> None:
    setup = setup_with_keys()
    await setup.created_keys.poll()
    http = client(setup)
    answer = http.post("/accordion/keys", json={"tenant": "research"}, headers=AS_ADMIN)
    made = answer.json()
    assert (answer.status_code, answer.headers["cache-control"]) == (201, "no-store")
    assert {**made, "key": "", "id": ""} == {
        "id": "", "tenant": "research", "source": "store", "created": setup.clock.now(), "key": "",
        "limits": {"tokens_per_day": None, "dollars_per_day": None, "requests_per_minute": None},
        "today": {"requests": 0, "tokens": 0, "dollars": 0.0},
    }  # fmt: skip
    own = {"x-accordion-key": made["key"], "authorization": "Bearer sk-own"}
    assert http.get("/accordion/sessions", headers=own).status_code == 200
    assert (await setup.ask(CHAT, BODY, own))[0].status == 200
    listed = http.get("/accordion/keys", headers=AS_ADMIN)
    assert [(key["id"], key["tenant"], key["source"]) for key in listed.json()["keys"]] == [
        ("one", "one", "config"), ("two", "two", "config"), (made["id"], "research", "store"),
    ]  # fmt: skip
    assert made["key"].split("-", 2)[2] not in listed.text
    revoked = http.delete(f"/accordion/keys/{made['id']}", headers=AS_ADMIN)
    assert (revoked.status_code, revoked.json()) == (200, {"id": made["id"], "revoked": True})
    assert http.get("/accordion/sessions", headers=own).status_code == 401
    assert (await setup.ask(CHAT, BODY, own))[0].status == 401
    again = http.delete(f"/accordion/keys/{made['id']}", headers=AS_ADMIN)
    assert (again.status_code, again.json()["error"]["code"]) == (404, "key_not_found")


@pytest.mark.parametrize("method", ["DELETE", "PATCH"])
def test_a_key_of_the_config_is_not_changed_here(method: str) -> None:
    answer = client(setup_with_keys()).request(method, "/accordion/keys/one", headers=AS_ADMIN, content=b"{}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "configured_key")


async def test_limits_are_set_at_the_creation_and_changed_later() -> None:
    setup = setup_with_keys()
    await setup.created_keys.poll()
    http = client(setup)
    made = http.post(
        "/accordion/keys", json={"tenant": "research", "tokens_per_day": 500, "dollars_per_day": 1.5}, headers=AS_ADMIN
    ).json()
    assert made["limits"] == {"tokens_per_day": 500, "dollars_per_day": 1.5, "requests_per_minute": None}
    path = f"/accordion/keys/{made['id']}"
    changed = http.patch(path, json={"tokens_per_day": 0, "requests_per_minute": 2}, headers=AS_ADMIN)
    limits = {"tokens_per_day": None, "dollars_per_day": 1.5, "requests_per_minute": 2}
    assert (changed.status_code, changed.json()["limits"], "key" in changed.json()) == (200, limits, False)
    own = {"x-accordion-key": made["key"], "authorization": "Bearer sk-own"}
    assert [(await setup.ask(CHAT, BODY, own))[0].status for _ in range(3)] == [200, 200, 429]
    await setup.outbox.flush()
    listed = http.get("/accordion/keys", headers=AS_ADMIN).json()["keys"][-1]
    assert (listed["limits"], listed["today"]["requests"]) == (limits, 2)
    unknown = http.patch("/accordion/keys/0123456789ab", json={"tokens_per_day": 5}, headers=AS_ADMIN)
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "key_not_found")


BAD_LIMITS = [
    b"", b"[]", b'{"tokens_per_day": -1}', b'{"dollars_per_day": 1e400}', b'{"dollars_per_day": NaN}',
    b'{"requests_per_minute": "5"}', b'{"tenant": "other"}', b'{"id": "one"}', b"\xff",
]  # fmt: skip


@pytest.mark.parametrize("body", BAD_LIMITS)
async def test_bad_limits_change_nothing(body: bytes) -> None:
    setup = setup_with_keys()
    await setup.created_keys.poll()
    http = client(setup)
    made = http.post("/accordion/keys", json={"tenant": "research", "tokens_per_day": 5}, headers=AS_ADMIN).json()
    assert http.patch(f"/accordion/keys/{made['id']}", content=body, headers=AS_ADMIN).status_code == 400
    assert http.get("/accordion/keys", headers=AS_ADMIN).json()["keys"][-1]["limits"] == made["limits"]


ROUTES = [
    ("GET", "/accordion/keys"),
    ("POST", "/accordion/keys"),
    ("DELETE", "/accordion/keys/one"),
    ("GET", "/metrics"),
]


@pytest.mark.parametrize(("method", "path"), ROUTES)
@pytest.mark.parametrize("key", ["", "key-one", "wrong", ADMIN[:-1], ADMIN + "x", ADMIN.upper()])
def test_no_other_key_opens_a_route_of_administrators(method: str, path: str, key: str) -> None:
    http = client(setup_with_keys())
    for headers in ({"authorization": f"Bearer {key}"}, {"x-api-key": key}, {**AS_ADMIN, "x-accordion-key": key}):
        answer = http.request(method, path, headers=headers)
        assert answer.status_code == 401, headers
        assert "key-two" not in answer.text
    assert http.request(method, path).status_code == 401


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_no_web_site_uses_the_admin_key(method: str, path: str) -> None:
    answer = client(setup_with_keys()).request(method, path, headers={**AS_ADMIN, "origin": "https://evil.example"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "foreign_origin")


@pytest.mark.parametrize("setup", [PipelineSetup(), PipelineSetup(keys=KEYS), PipelineSetup(loopback=False)])
def test_without_an_admin_key_nobody_is_an_administrator(setup: PipelineSetup) -> None:
    http = client(setup)
    for headers in ({}, {"authorization": "Bearer "}, {"authorization": "Bearer key-one"}, {"x-accordion-key": ""}):
        answer = http.get("/accordion/keys", headers=headers)
        assert answer.status_code == 401
        assert "admin_key" in answer.json()["error"]["message"]


def test_the_admin_key_is_no_key_of_a_tenant() -> None:
    http = client(setup_with_keys())
    for path in ("/accordion/sessions", "/accordion/models", "/accordion/export", "/accordion/savings"):
        assert http.get(path, headers=AS_ADMIN).status_code == 401
    assert http.delete("/accordion/archive", headers=AS_ADMIN).status_code == 401


def test_metrics_need_the_admin_key_where_there_are_proxy_keys() -> None:
    assert client(setup_with_keys()).get("/metrics", headers=AS_ADMIN).status_code == 200
    refused = client(PipelineSetup(keys=KEYS)).get("/metrics", headers={"authorization": "Bearer key-one"})
    assert (refused.status_code, "set `admin_key`" in refused.text) == (401, True)
    assert client(PipelineSetup()).get("/metrics").status_code == 200


BAD_BODIES: list[Any] = [
    b"", b"null", b"[]", b"{", b'{"tenant": 5}', b'{"tenant": ""}', b'{"tenant": "a b"}', b'{"tenant": null}',
    b'{"tenant": "a", "key": "chosen"}', b'{"tenant": "../../x"}', b"\xff\xfe", b'{"tenant": "\\u0000"}',
    b'{"tenant": "' + b"a" * 129 + b'"}',
]  # fmt: skip


@pytest.mark.parametrize("body", BAD_BODIES)
def test_a_bad_body_creates_no_key(body: bytes) -> None:
    http = client(setup_with_keys())
    assert http.post("/accordion/keys", content=body, headers=AS_ADMIN).status_code == 400
    assert len(http.get("/accordion/keys", headers=AS_ADMIN).json()["keys"]) == len(KEYS)


def test_a_body_that_is_too_long_is_refused() -> None:
    answer = client(setup_with_keys()).post("/accordion/keys", content=b" " * 70_000, headers=AS_ADMIN)
    assert answer.status_code == 413


# -- the view over all tenants -----------------------------------------------------------------------------------------

PRICES = "prices: {models: {m: {input: 3, cached_input: 0.3, cache_write: 3.75, output: 15}}}\n"
PAGES = "/accordion/pages"
OWN = {"sec-fetch-site": "same-origin"}


def reported() -> FakeReply:
    usage = {"prompt_tokens": 1_000_000, "completion_tokens": 100_000, "total_tokens": 1_100_000}
    return FakeReply(pieces=(json.dumps({"choices": [], "usage": usage}).encode(),))


async def used_world() -> PipelineSetup:
    """A proxy with two tenants of the config and one of a created key; `one` has sent a request."""
    setup = PipelineSetup(keys=KEYS, admin_key=ADMIN, config=PRICES)
    await setup.created_keys.poll()
    await setup.created_keys.create("research", KeyLimits(tokens_per_day=5_000_000, requests_per_minute=60))
    setup.upstream.answers = [reported()]
    await setup.ask(CHAT, {**BODY, "model": "m"}, {"x-accordion-key": "key-one", "authorization": "Bearer sk-own"})
    return setup


def signed_in(setup: PipelineSetup, key: str) -> TestClient:
    browser = client(setup, base_url="https://proxy.example")
    assert browser.post(SIGN_IN, data={"key": key, "to": ""}, headers=OWN).status_code == 303
    return browser


async def test_the_administrator_sees_what_each_tenant_costs() -> None:
    setup = await used_world()
    http = client(setup)
    found = http.get("/accordion/tenants?days=7", headers=AS_ADMIN).json()
    assert (found["first"], found["last"], found["next"]) == ("1970-01-06", "1970-01-12", None)
    tenants = {tenant["tenant"]: tenant for tenant in found["tenants"]}
    assert list(tenants) == ["one", "research", "two"]
    assert [tenants[name]["total"]["requests"] for name in tenants] == [1, 0, 0]
    assert tenants["one"]["total"]["dollars"]["spent"] == 4.5
    (key,) = tenants["one"]["keys"]
    assert key["today"] == {"requests": 1, "tokens": 1_100_000, "dollars": 4.5}
    (key,) = tenants["research"]["keys"]
    assert key["limits"] == {"tokens_per_day": 5_000_000, "dollars_per_day": None, "requests_per_minute": 60}
    first = http.get("/accordion/tenants?limit=2", headers=AS_ADMIN).json()
    second = http.get(f"/accordion/tenants?limit=2&after={first['next']}", headers=AS_ADMIN).json()
    assert [tenant["tenant"] for page in (first, second) for tenant in page["tenants"]] == list(tenants)
    assert second["next"] is None


async def test_only_the_administrator_sees_the_hold_out_of_all_tenants_together() -> None:
    setup = await used_world()
    await write_sessions(setup.store, setup.clock.now(), "one", groups(spread(1.2, 40), spread(1.0, 20)))
    await write_sessions(setup.store, setup.clock.now(), "two", groups(spread(1.2, 40), spread(1.0, 20)))
    http = client(setup)
    found = http.get("/accordion/tenants?limit=2", headers=AS_ADMIN).json()
    assert (found["holdout"]["sessions"]["holdout"], found["holdout"]["verdict"]) == (40, "costs")
    later = http.get(f"/accordion/tenants?limit=2&after={found['next']}", headers=AS_ADMIN).json()
    assert later["holdout"] is None
    assert found["holdout"]["sentence"] in signed_in(setup, ADMIN).get(f"{PAGES}/tenants").text
    own = http.get("/accordion/savings", headers={"x-accordion-key": "key-one"}).json()["holdout"]
    assert (own["sessions"]["holdout"], own["verdict"]) == (20, "too_few")


@pytest.mark.parametrize("query", ["days=0", "days=401", "days=x", "limit=0", "limit=1001", "limit=-1"])
async def test_a_wrong_number_of_days_or_tenants_is_refused(query: str) -> None:
    assert client(setup_with_keys()).get(f"/accordion/tenants?{query}", headers=AS_ADMIN).status_code == 400


async def test_the_administrators_page_lists_all_tenants_and_shows_no_tenants_data() -> None:
    setup = await used_world()
    browser = signed_in(setup, ADMIN)
    assert ADMIN not in str(browser.cookies.get("accordion_page"))
    shown = browser.get(f"{PAGES}/tenants?days=7")
    text = " ".join(re.sub(r"<[^>]+>", " ", shown.text).split())
    assert shown.status_code == 200
    for words in ("one 1 1,000,000 100,000 $4.50", "5,000,000 tokens a day", "60 requests a minute", "in the config"):
        assert words in text
    assert "key-one" not in shown.text
    for path in ("/accordion/", f"{PAGES}/sessions", f"{PAGES}/savings", f"{PAGES}/health", f"{PAGES}/events"):
        answer = browser.get(path)
        assert (answer.status_code, location(answer)) == (303, f"{PAGES}/tenants")
    assert browser.post(f"{PAGES}/sessions/s-1/compact", headers=OWN).status_code == 403
    browser.post(SIGN_OUT, headers=OWN)
    assert location(browser.get(f"{PAGES}/tenants")).startswith(f"{SIGN_IN}?to=")


async def test_a_tenants_key_opens_no_view_over_all_tenants() -> None:
    setup = await used_world()
    shown = signed_in(setup, "key-one").get(f"{PAGES}/tenants")
    assert (shown.status_code, "research" in shown.text) == (403, False)
    assert client(PipelineSetup()).get(f"{PAGES}/tenants").status_code == 403
    other = client(PipelineSetup(keys=KEYS, admin_key="another-admin-key-of-it"), base_url="https://proxy.example")
    other.cookies.set("accordion_page", str(signed_in(setup, ADMIN).cookies.get("accordion_page")))
    assert location(other.get(f"{PAGES}/tenants")).startswith(SIGN_IN)
    foreign = signed_in(setup, ADMIN).get(f"{PAGES}/tenants", headers={"origin": "https://evil.example"})
    assert (foreign.status_code, "research" in foreign.text) == (403, False)


async def test_while_created_keys_are_unknown_the_administrator_still_signs_in() -> None:
    browser = signed_in(PipelineSetup(keys=KEYS, admin_key=ADMIN), ADMIN)
    assert browser.get(f"{PAGES}/tenants").status_code == 200


async def test_the_administrator_creates_limits_and_revokes_a_key_on_the_page() -> None:
    setup = await used_world()
    browser = signed_in(setup, ADMIN)
    keys = f"{PAGES}/tenants/keys"
    created = browser.post(keys, data={"tenant": "new-team", "requests_per_minute": "5"}, headers=OWN)
    assert created.status_code == 201
    (key,) = re.findall(r"acc-[\w-]{20,}", created.text)
    (key_id,) = re.findall(r"id is <code>([^<]+)<", created.text)
    assert key not in browser.get(f"{PAGES}/tenants").text
    assert client(setup).get("/accordion/sessions", headers={"x-accordion-key": key}).status_code == 200
    assert 'value="5"' in browser.get(f"{keys}/{key_id}").text
    answer = browser.post(f"{keys}/{key_id}/limits", data={"dollars_per_day": "2.5"}, headers=OWN)
    assert location(answer) == f"{PAGES}/tenants?done=limits"
    assert "limits of the key are changed" in browser.get(location(answer)).text
    limits = next(
        each for each in client(setup).get("/accordion/keys", headers=AS_ADMIN).json()["keys"] if each["id"] == key_id
    )
    assert limits["limits"] == {"tokens_per_day": None, "dollars_per_day": 2.5, "requests_per_minute": None}
    assert browser.post(f"{keys}/{key_id}/revoke", data={"confirm": "x"}, headers=OWN).status_code == 400
    revoked = browser.post(f"{keys}/{key_id}/revoke", data={"confirm": key_id}, headers=OWN)
    assert location(revoked) == f"{PAGES}/tenants?done=revoke"
    assert client(setup).get("/accordion/sessions", headers={"x-accordion-key": key}).status_code == 401
    assert browser.get(f"{keys}/{key_id}").status_code == 404


@pytest.mark.parametrize(
    "fields",
    [
        {"tenant": ""},
        {"tenant": "a", "tokens_per_day": "many"},
        {"tenant": "a", "dollars_per_day": "nan"},
        {"tenant": "a", "requests_per_minute": "-1"},
    ],
)
async def test_a_key_is_not_created_from_a_form_that_cannot_be_read(fields: dict[str, str]) -> None:
    setup = await used_world()
    before = client(setup).get("/accordion/keys", headers=AS_ADMIN).json()
    assert signed_in(setup, ADMIN).post(f"{PAGES}/tenants/keys", data=fields, headers=OWN).status_code == 400
    assert client(setup).get("/accordion/keys", headers=AS_ADMIN).json() == before


async def test_keys_are_changed_by_the_administrators_own_page_alone() -> None:
    setup = await used_world()
    admin, tenant = signed_in(setup, ADMIN), signed_in(setup, "key-one")
    keys = f"{PAGES}/tenants/keys"
    assert admin.post(keys, data={"tenant": "x"}, headers={"sec-fetch-site": "cross-site"}).status_code == 403
    assert tenant.post(keys, data={"tenant": "x"}, headers=OWN).status_code == 403
    assert (
        client(setup, base_url="https://proxy.example").post(keys, data={"tenant": "x"}, headers=OWN).status_code == 303
    )
    assert admin.post(f"{keys}/one/revoke", data={"confirm": "one"}, headers=OWN).status_code == 409
    assert len(client(setup).get("/accordion/keys", headers=AS_ADMIN).json()["keys"]) == 3

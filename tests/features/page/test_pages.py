"""The page at /accordion/: who may see it, what it refuses, and that each tenant sees its own data."""

from __future__ import annotations

import asyncio
import re
from html import unescape
from typing import Any

import pytest
from starlette.testclient import TestClient

from accordion.accounting.ledger import DAY, ENCODER, DaySavings, exchanges_key
from accordion.compaction.session_overrides import SessionOverrides
from accordion.features.page.access import COOKIE, TICKET_SECONDS
from accordion.features.page.addresses import SIGN_IN, SIGN_OUT
from accordion.features.page.charts import CurvePoint, draw_curve, draw_days, draw_small_curve, level_class
from accordion.features.page.feed import MAX_READERS, ExchangeFeed, TooManyReaders
from accordion.features.page.rendering import capitalize, describe_basis, format_dollars
from accordion.features.page.views import link_text, view_blocks
from accordion.model.budget import Thresholds
from accordion.model.conversation import Message, Text
from accordion.model.costs import Basis, Costs
from accordion.model.records import CompactionOutcome
from accordion.model.tenant import TenantScope
from accordion.pipeline.sent_history import ComparedBlock
from accordion.sessions.proxy_keys import ProxyKey
from accordion.sessions.tenants import OWNER_TOKEN_FILE, Tenants
from tests.growing_conversation import COMPACTED_AT, GrowingConversation, call_id, small_window_setup
from tests.holdouts import groups, spread, write_sessions
from tests.http.api_client import client, location
from tests.http.exchanges import exchange
from tests.pipeline_setup import OWNER_TOKEN, PipelineSetup, header

ONE, TWO = ProxyKey("one", "key-one"), ProxyKey("two", "key-two")
OWN = {"sec-fetch-site": "same-origin"}
PAGES = "/accordion/pages"
TENANT = TenantScope("default", b"key")


async def compacted(setup: PipelineSetup, **headers: str) -> str:
    """A session that was compacted."""
    session = header(await GrowingConversation(setup).until(COMPACTED_AT + 1, **headers), "x-accordion-session")
    await setup.archive.transcripts.flush()
    assert session is not None
    return session


def recording(**fields: Any) -> PipelineSetup:
    return small_window_setup(config="archive: {record: all}", **fields)


def signed_in(setup: PipelineSetup, key: str) -> TestClient:
    """A browser that has signed in."""
    browser = client(setup, base_url="https://proxy.example")
    answer = browser.post(SIGN_IN, data={"key": key, "to": ""}, headers=OWN)
    assert (answer.status_code, location(answer)) == (303, "/accordion/")
    return browser


def owner(setup: PipelineSetup) -> TestClient:
    """A browser of this machine that has opened the address that the proxy printed."""
    browser = client(setup, token="")
    answer = browser.get(f"{SIGN_IN}?token={OWNER_TOKEN}")
    assert (answer.status_code, location(answer)) == (303, "/accordion/")
    return browser


def text_of(html: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", html)).split())


# -- views -------------------------------------------------------------------------------------------------------------


async def test_each_view_shows_the_records_and_has_nothing_inline() -> None:
    setup = recording()
    session = await compacted(setup)
    http = owner(setup)
    record = http.get(f"/accordion/sessions/{session}").json()
    (made,) = {each["compaction"]["id"] for each in record["exchanges"] if each["compaction"]}
    (artifact, *_) = http.get(f"/accordion/artifacts?session={session}").json()["artifacts"]
    tokens = record["costs"]["tokens"]
    unsent = tokens["without_accordion"]["input"] - tokens["sent"]["input"]
    views = {
        "/accordion/": "gpt-5",
        f"{PAGES}/sessions": session,
        f"{PAGES}/sessions/{session}": f"Tokens not sent {unsent:,}",
        f"{PAGES}/sessions/{session}/sent": "What the model sees now",
        f"{PAGES}/sessions/{session}/compactions/{made}": "replaced by one message",
        f"{PAGES}/sessions/{session}/erase": "cannot be undone",
        f"{PAGES}/artifacts/{artifact['id']}": artifact["id"],
        f"{PAGES}/savings": "By model",
        f"{PAGES}/health": "memory://",
    }
    for path, words in views.items():
        answer = http.get(path)
        assert (answer.status_code, path) == (200, path)
        assert words in text_of(answer.text), path
        assert not re.search(r"<style|style=|\son[a-z]+=|javascript:|<script(?! src=)", answer.text), path
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["cache-control"] == "no-store"
        for link in re.findall(r"(?:src|href|action|data-events)=\"([^\"]*)\"", answer.text):
            assert not link.startswith("/"), (path, link)
            assert str(answer.request.url.join(unescape(link)).path).startswith("/accordion/"), (path, link)


async def test_a_compaction_has_the_reason_of_its_own_request_however_long_ago() -> None:
    setup = recording()
    session = await compacted(setup)
    http = client(setup)
    exchanges = http.get(f"/accordion/sessions/{session}").json()["exchanges"]
    made = next(each for each in exchanges if each["compaction"] and each["compaction"]["state"] == "compacted")
    outcome = CompactionOutcome("replayed", made["compaction"]["id"])
    log = exchanges_key(TENANT, session)
    later = ENCODER.encode(exchange(at=setup.clock.now() + 1, decision="another reason", compaction=outcome))
    await setup.store.append(log, [later] * 60)
    html = http.get(f"{PAGES}/sessions/{session}").text
    (path,) = set(re.findall(r'href="[^"]*?(sessions/[^"]*/compactions/[^"]*)"', html))
    shown = text_of(http.get(f"{PAGES}/{path}").text)
    assert made["decision"] in shown
    assert "another reason" not in shown
    assert len(re.findall(r'<tr id="r\d+"', html)) == 50
    (older,) = re.findall(r'rel="next" data-more="request-rows" href="([^"]+)#requests"', html)
    assert '<tr id="r1"' in http.get(f"{PAGES}/sessions/{older.rpartition('/')[2]}").text


async def test_conversation_text_is_never_markup() -> None:
    setup = recording()
    talk = GrowingConversation(setup)
    await talk.turn(2)
    body = talk.bodies[-1].replace(b"word1_0_0", b"<img src=x onerror=alert(1)>&amp;")
    assert body != talk.bodies[-1]
    out, _ = await setup.ask("/v1/chat/completions", body, {"x-accordion-session": "label-of-mine"})
    await setup.archive.transcripts.flush()
    html = client(setup).get(f"{PAGES}/sessions/{header(out, 'x-accordion-session')}/sent").text
    assert "<img" not in html
    assert "&lt;img src=x onerror=alert(1)&gt;&amp;amp;" in html


async def test_sessions_are_paged_and_found_by_their_label() -> None:
    setup = recording()
    for number in range(23):
        await GrowingConversation(setup).turn(1, x_accordion_session=f"label-{number:02d}")
        setup.clock.advance(1)
    http = client(setup)
    first = http.get(f"{PAGES}/sessions").text
    assert re.findall(r" · (label-\d\d) · ", first) == [f"label-{number:02d}" for number in range(22, 2, -1)]
    (rest,) = re.findall(r'rel="next" href="([^"]+)"', first)
    second = http.get(f"{PAGES}/{unescape(rest)}").text
    assert re.findall(r" · (label-\d\d) · ", second) == ["label-02", "label-01", "label-00"]
    assert 'rel="next"' not in second
    assert re.findall(r" · (label-\d\d) · ", http.get(f"{PAGES}/sessions?label=label-07").text) == ["label-07"]
    assert http.get(f"{PAGES}/sessions?after=x").status_code == 400


async def test_an_error_is_a_page_that_says_what_happened() -> None:
    http = client(small_window_setup())
    for path in ("sessions/s-none", "sessions/s-none/sent", "artifacts/art_000000000000"):
        answer = http.get(f"{PAGES}/{path}")
        assert answer.status_code == 404
        assert answer.headers["content-type"].startswith("text/html")
        assert "There is no such" in answer.text
    assert http.get(f"{PAGES}/static/routes.py").status_code == 404
    assert http.get(f"{PAGES}/artifacts/art_000000000000?offset=x").status_code == 400


async def test_savings_are_those_of_the_api_and_a_loss_is_shown_as_such() -> None:
    setup = recording()
    talk = GrowingConversation(setup)
    await talk.until(COMPACTED_AT + 1)
    http = client(setup)
    report = http.get("/accordion/savings").json()
    html = http.get(f"{PAGES}/savings").text
    assert report["days"]
    assert all(each["day"] in html for each in report["days"])
    assert f">{report['total']['requests']:,}<" in html
    assert 'aria-current="page">7 days' in http.get(f"{PAGES}/savings?days=7").text
    assert http.get(f"{PAGES}/savings?days=0").status_code == 400
    days = [DaySavings("2026-01-02", Costs(original_cost=10, sent_cost=90)), DaySavings("2026-01-01", Costs())]
    svg = str(draw_days(days, "two days"))
    assert svg.index("2026-01-01") < svg.index("2026-01-02")
    assert "<$0.01 without Accordion" in unescape(svg)


def test_a_basis_that_all_figures_share_is_named_once() -> None:
    unchanged = Costs(requests=2, input=9, original_input=9)
    assert describe_basis(unchanged) == "All figures are reported by the providers."
    compacted = Costs(requests=2, input=9, original_input=20)
    assert describe_basis(compacted) == "What was paid is reported by the providers; the rest is estimated."


def test_a_heading_begins_with_a_capital_and_keeps_those_of_names() -> None:
    assert capitalize("result of Read({'file_path': '/Users/Dev1'})") == "Result of Read({'file_path': '/Users/Dev1'})"
    (view,) = view_blocks([ComparedBlock("inserted", -1, -1, (), ())], [])
    assert view.title == "Inserted by Accordion"


@pytest.mark.parametrize(
    ("nanodollars", "basis", "text"),
    [
        (0, "estimate", "$0.00"),
        (4_900_000, "estimate", "<$0.01"),
        (-4_900_000, "reported", "−<$0.01"),
        (-25_000_000, "estimate", "~−$0.03"),
        (1_234_560_000_000, "reported", "$1,234.56"),
        (1_234_560_000_000, "both", "~$1,234.56"),
    ],
)
def test_money_is_shown_in_cents_and_estimates_are_marked(nanodollars: int, basis: Basis, text: str) -> None:
    assert format_dollars(nanodollars, basis) == text


async def test_the_overview_begins_with_what_was_saved_and_avoided() -> None:
    setup = recording()
    await GrowingConversation(setup).until(COMPACTED_AT + 1)
    http = client(setup)
    total = http.get("/accordion/savings").json()["total"]
    text = text_of(http.get("/accordion/").text)
    tokens = total["tokens"]
    unsent = tokens["without_accordion"]["input"] - tokens["sent"]["input"]
    assert unsent > 0
    assert f"Tokens not sent {unsent:,} Overflows avoided {total['requests_over_window']}" in text
    assert text.index("Saved, net") < text.index("Tokens not sent") < text.index("Models")
    assert f"Tokens not sent {unsent:,} " in text_of(http.get(f"{PAGES}/savings").text)


async def test_one_day_of_costs_is_a_sentence_and_more_days_are_a_chart() -> None:
    setup = recording()
    talk = GrowingConversation(setup)
    await talk.until(COMPACTED_AT + 1)
    http = client(setup)
    for path in ("/accordion/", f"{PAGES}/savings"):
        shown = http.get(path).text
        assert ("All of this is from one day" in shown, "curve days" in shown) == (True, False)
    setup.clock.advance(DAY)
    await talk.turn(1)
    for path in ("/accordion/", f"{PAGES}/savings"):
        shown = http.get(path).text
        assert ("All of this is from one day" in shown, "curve days" in shown) == (False, True)


def test_a_window_above_its_trigger_is_no_alarm_and_one_beyond_its_limit_is() -> None:
    limits = Thresholds().limits(100_000)
    levels = [level_class(tokens, limits) for tokens in (10_000, limits.conversation, limits.hard - 1, limits.hard)]
    assert levels == ["fill", "fill-working", "fill-working", "fill-hard"]


# -- changes -----------------------------------------------------------------------------------------------------------


async def test_changes_by_the_page_are_those_of_the_api() -> None:
    setup = recording()
    session = await compacted(setup)
    http = owner(setup)
    path, api = f"{PAGES}/sessions/{session}", f"/accordion/sessions/{session}"
    for change, fields in (("compact", {"x": ""}), ("mode", {"mode": "observe"}), ("pin", {"call_id": call_id(3)})):
        answer = http.post(f"{path}/{change}", data=fields, headers=OWN)
        assert (answer.status_code, location(answer)) == (303, f"{path}?done={change}")
        assert 'class="notice"' in http.get(location(answer)).text
    record = http.get(api).json()
    assert (record["compaction_wanted"], record["mode"], record["pins"]) == (True, "observe", [call_id(3)])
    assert http.post(f"{path}/unpin", data={"call_id": call_id(3)}, headers=OWN).status_code == 303
    assert http.get(api).json()["pins"] == []
    assert http.get(f"{path}/export").content == client(setup).get(f"{api}/export").content
    assert http.post(f"{path}/mode", data={"mode": "now"}, headers=OWN).status_code == 400
    assert http.post(f"{path}/pin", data={"call_id": ""}, headers=OWN).status_code == 400


async def test_a_session_is_erased_only_after_it_was_confirmed() -> None:
    setup = recording()
    session = await compacted(setup)
    http = owner(setup)
    path = f"{PAGES}/sessions/{session}/erase"
    assert http.post(path, data={"confirm": "yes"}, headers=OWN).status_code == 400
    assert http.put(f"/accordion/sessions/{session}/mode", json={"mode": "off"}).status_code == 200
    answer = http.post(path, data={"confirm": session}, headers=OWN)
    assert answer.status_code == 200
    assert "Erased" in answer.text
    assert http.get(f"/accordion/sessions/{session}").status_code == 404
    tenant = setup.forward.tenants.identify({}).tenant
    assert await setup.builder.session_overrides.load(tenant, [session]) == [SessionOverrides()]


async def test_a_change_that_another_site_sends_is_refused() -> None:
    setup = recording()
    session = await compacted(setup)
    http = owner(setup)
    for headers in (
        {},
        {"origin": "http://127.0.0.1:9999"},
        {"origin": "https://elsewhere.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site", "origin": "http://127.0.0.1:8787"},
        {"sec-fetch-site": "none"},
        {"sec-fetch-site": "same-origin", "origin": "https://elsewhere.example"},
    ):
        for change in ("compact", "mode", "pin", "unpin", "erase"):
            data = {"mode": "off", "call_id": "call_1", "confirm": session}
            answer = http.post(f"{PAGES}/sessions/{session}/{change}", data=data, headers=headers)
            assert (answer.status_code, change, headers) == (403, change, headers)
    record = http.get(f"/accordion/sessions/{session}").json()
    assert (record["compaction_wanted"], record["mode"], record["pins"]) == (False, "auto", [])
    own = {"origin": "http://127.0.0.1:8787"}
    assert http.post(f"{PAGES}/sessions/{session}/compact", data={"x": ""}, headers=own).status_code == 303


async def test_a_page_of_artifacts_that_is_not_known_is_a_bad_request() -> None:
    setup = recording()
    session = await compacted(setup)
    http = client(setup)
    for cursor in ("x", "².1.1.1.art", "--1.1.1.1.art", f"{'9' * 5_000}.1.1.1.art", "art/no-hex"):
        assert http.get(f"{PAGES}/sessions/{session}", params={"artifacts": cursor}).status_code == 400, cursor


async def test_a_change_is_a_form_and_not_a_document_of_another_type() -> None:
    setup = recording()
    session = await compacted(setup)
    answer = client(setup).post(f"{PAGES}/sessions/{session}/mode", json={"mode": "off"}, headers=OWN)
    assert answer.status_code == 400


# -- signing in --------------------------------------------------------------------------------------------------------


async def test_where_proxy_keys_are_configured_a_person_signs_in_and_sees_one_tenant() -> None:
    setup = recording(keys=(ONE, TWO))
    session = await compacted(setup, x_accordion_key="key-one")
    view = f"pages/sessions/{session}"
    path = f"/accordion/{view}"
    stranger = client(setup, base_url="https://proxy.example")
    answer = stranger.get(path)
    assert (answer.status_code, location(answer)) == (303, f"{SIGN_IN}?to=pages%2Fsessions%2F{session}")
    wrong = stranger.post(SIGN_IN, data={"key": "key-three", "to": view}, headers=OWN)
    assert (wrong.status_code, "set-cookie" in wrong.headers) == (401, False)
    one, two = signed_in(setup, "key-one"), signed_in(setup, "key-two")
    assert "memory://" not in one.get(f"{PAGES}/health").text
    assert one.get(path).status_code == 200
    assert two.get(path).status_code == 404
    assert session not in two.get("/accordion/").text
    assert two.post(f"{path}/erase", data={"confirm": session}, headers=OWN).status_code == 404
    assert one.post(SIGN_OUT, headers=OWN).status_code == 303
    assert one.get(path).status_code == 303


async def test_the_cookie_is_for_this_page_alone_and_does_not_hold_the_key() -> None:
    browser = client(recording(keys=(ONE,)), base_url="https://proxy.example")
    answer = browser.post(SIGN_IN, data={"key": "key-one"}, headers=OWN)
    cookie = answer.headers["set-cookie"]
    assert "key-one" not in cookie
    fields = {each.strip().lower() for each in cookie.split(";")[1:]}
    assert {"httponly", "samesite=strict", "secure", f"max-age={TICKET_SECONDS}"} <= fields
    assert {cookie.path for cookie in browser.cookies.jar} == {"/accordion"}
    assert browser.get("/accordion/sessions").status_code == 401


async def test_signing_in_leads_to_no_other_site_and_is_refused_to_one() -> None:
    browser = client(recording(keys=(ONE,)), base_url="https://proxy.example")
    for target in (
        "https://elsewhere.example/", "//elsewhere.example/", "pages/\\elsewhere.example", "/v1/x", "pages/../../x",
        "pages//elsewhere.example", "pages/%2e%2E/.%2e/x", "",
    ):  # fmt: skip
        answer = browser.post(SIGN_IN, data={"key": "key-one", "to": target}, headers=OWN)
        assert (answer.status_code, location(answer)) == (303, "/accordion/")
    refused = browser.post(SIGN_IN, data={"key": "key-one"}, headers={"origin": "https://elsewhere.example"})
    assert (refused.status_code, "set-cookie" in refused.headers) == (403, False)


def test_a_ticket_ends_with_its_time_its_key_and_its_secret() -> None:
    tenants = Tenants(b"secret", (ONE, TWO))
    ticket = tenants.issue_ticket("key-two", 1_000.0)
    assert ticket is not None
    assert tenants.issue_ticket("key-three", 1_000.0) is None
    caller = tenants.find_by_ticket(ticket, 999.0)
    assert caller is not None
    assert (caller.tenant.name, caller.has_proxy_key, caller.credential) == ("two", True, "")
    assert tenants.find_by_ticket(ticket, 1_000.0) is None
    assert Tenants(b"secret", (ONE, ProxyKey("two", "other"))).find_by_ticket(ticket, 999.0) is None
    assert Tenants(b"another", (ONE, TWO)).find_by_ticket(ticket, 999.0) is None
    later = f"ffffffff.{ticket.partition('.')[2]}"
    for forged in (later, ticket[:-1], f"{ticket}0", "", ".", "é.é", f"ff.é{ticket}", ticket.partition(".")[2]):
        assert tenants.find_by_ticket(forged, 10.0) is None


def test_a_ticket_for_the_owners_token_ends_with_the_token() -> None:
    tenants = Tenants(b"secret", owner_token="first")
    ticket = tenants.issue_ticket("first", 1_000.0)
    assert ticket is not None
    caller = tenants.find_by_ticket(ticket, 999.0)
    assert caller is not None
    assert (caller.tenant.name, caller.has_proxy_key, caller.is_local, caller.can_erase) == (
        "default",
        False,
        True,
        True,
    )
    assert Tenants(b"secret", owner_token="second").find_by_ticket(ticket, 999.0) is None
    assert Tenants(b"secret", (ProxyKey("default", "first"),)).find_by_ticket(ticket, 1_000.0) is None
    assert Tenants(b"secret").issue_ticket("", 1_000.0) is None


def test_on_another_address_the_owners_ticket_opens_the_chosen_tenant() -> None:
    tenants = Tenants(b"secret", loopback=False, owner_token="first")
    assert tenants.issue_ticket("second", 1_000.0) is None
    ticket = tenants.issue_ticket("first", 1_000.0)
    assert ticket is not None
    assert (tenants.is_owner_ticket(ticket, 999.0), tenants.find_by_ticket(ticket, 999.0)) == (True, None)
    chosen = tenants.choose_tenant(ticket, "c-1", 999.0)
    assert chosen is not None
    caller = tenants.find_by_ticket(chosen, 999.0)
    assert caller is not None
    assert (caller.tenant.name, caller.is_local, caller.can_erase, caller.credential) == ("c-1", False, True, "")
    # It ends when the first one does, with the token, and with the first proxy key.
    assert tenants.find_by_ticket(chosen, 1_000.0) is None
    forged = chosen.replace(".c-1.", ".c-2.")
    for other, each in (
        (tenants, forged),
        (Tenants(b"secret", loopback=False, owner_token="second"), chosen),
        (Tenants(b"secret", loopback=False), chosen),
        (Tenants(b"secret", (ONE,), loopback=False, owner_token="first"), chosen),
    ):
        assert (other.find_by_ticket(each, 999.0), other.is_owner_ticket(each, 999.0)) == (None, False)
        assert other.choose_tenant(each, "c-1", 999.0) is None


async def ask_as(setup: PipelineSetup, key: str) -> str:
    """Sends a request with a credential; returns its session."""
    body = {"model": "gpt-5", "messages": [{"role": "user", "content": f"Hello from {key}."}]}
    out, _ = await setup.ask("/v1/chat/completions", body, {"authorization": f"Bearer {key}"})
    session = header(out, "x-accordion-session")
    assert session is not None
    return session


async def test_on_another_address_the_owners_link_shows_the_only_tenant_at_once() -> None:
    setup = recording(loopback=False)
    browser = client(setup, base_url="http://ai.example:8787", token="")
    assert browser.get("/accordion/").headers["location"].startswith("./sign-in")
    assert browser.get(f"/accordion/sign-in?token={OWNER_TOKEN}").status_code == 303
    # Nothing came yet.
    assert browser.get("/accordion/").headers["location"] == "./tenant"
    assert "Point your client at http://ai.example:8787/v1" in text_of(browser.get("/accordion/tenant").text)
    session = await ask_as(setup, "sk-one")
    assert browser.get("/accordion/tenant").headers["location"] == "./"
    overview = browser.get("/accordion/")
    assert (overview.status_code, session in overview.text) == (200, True)


async def test_on_another_address_the_owner_chooses_among_tenants_and_nobody_else_can() -> None:
    setup = recording(loopback=False)
    one, two = await ask_as(setup, "sk-one"), await ask_as(setup, "sk-two")
    browser = client(setup, base_url="http://ai.example:8787", token="")
    assert browser.get(f"/accordion/sign-in?token={OWNER_TOKEN}").status_code == 303
    tenants = re.findall(r'name="tenant" value="([^"]+)"', browser.get("/accordion/tenant").text)
    assert len(tenants) == 2
    shown = []
    for tenant in tenants:
        answer = browser.post("/accordion/tenant", data={"tenant": tenant}, headers=OWN)
        assert (answer.status_code, answer.headers["location"]) == (303, "./")
        html = browser.get("/accordion/").text
        shown.append([session for session in (one, two) if session in html])
        assert "all tenants" in text_of(html)
    assert sorted(shown) == sorted([[one], [two]])
    assert browser.post("/accordion/tenant", data={"tenant": "c-none"}, headers=OWN).status_code == 404
    foreign = {"origin": "http://elsewhere.example"}
    assert browser.post("/accordion/tenant", data={"tenant": tenants[0]}, headers=foreign).status_code == 403
    # The ticket is for the page alone, and the token opens no API.
    assert browser.get(f"/accordion/sessions/{one}").status_code != 200
    assert browser.get(f"/accordion/sessions/{one}", headers={"x-accordion-token": OWNER_TOKEN}).status_code != 200
    stranger = client(setup, base_url="http://ai.example:8787", token="")
    # The views and keys of administrators are none of the owner's.
    assert browser.get(f"{PAGES}/tenants").status_code == 403
    assert browser.post(f"{PAGES}/tenants/keys", data={"tenant": "new"}, headers=OWN).status_code == 403
    for answer in (
        stranger.get("/accordion/tenant"),
        stranger.post("/accordion/tenant", data={"tenant": tenants[0]}, headers=OWN),
        stranger.get(f"{PAGES}/sessions/{one}"),
    ):
        assert "sign-in" in answer.headers["location"]
        assert "set-cookie" not in answer.headers


async def test_on_this_machine_the_owner_can_look_at_what_came_through_another_proxy() -> None:
    setup = recording()
    body = {"model": "gpt-5", "messages": [{"role": "user", "content": "Hello."}]}
    sent = {"authorization": "Bearer sk-one", "x-forwarded-for": "203.0.113.7"}
    out, _ = await setup.ask("/v1/chat/completions", body, sent)
    session = header(out, "x-accordion-session")
    browser = owner(setup)
    assert browser.get(f"{PAGES}/sessions/{session}").status_code == 404
    # It is the only tenant.
    assert browser.get("/accordion/tenant").status_code == 303
    assert browser.get(f"{PAGES}/sessions/{session}").status_code == 200


async def test_without_keys_other_machines_and_other_host_names_are_refused() -> None:
    assert client(recording(loopback=False)).get("/accordion/").headers["location"].startswith("./sign-in")
    assert client(recording(), base_url="http://rebound.example").get("/accordion/").status_code == 403
    assert location(client(recording()).get("/accordion")) == "/accordion/"
    assert "To see this page, enter the token" in text_of(client(recording(loopback=False)).get(SIGN_IN).text)


async def test_what_came_through_another_proxy_sees_nothing_with_any_ticket() -> None:
    setup = recording()
    session = await compacted(setup)
    for browser in (client(setup), owner(setup)):
        for sign in ({"x-forwarded-for": "203.0.113.7"}, {"via": "1.1 x"}, {"host": "ai.example", "x-real-ip": "::1"}):
            for path in ("/accordion/", f"{PAGES}/sessions/{session}", f"{PAGES}/events", "/accordion/sign-in"):
                answer = browser.get(path, headers=sign)
                assert (answer.status_code, answer.headers["content-type"].partition(";")[0]) == (403, "text/html")
                assert "Configure proxy_keys" in text_of(answer.text)
                assert session not in answer.text
            change = f"{PAGES}/sessions/{session}/mode"
            assert browser.post(change, data={"mode": "off"}, headers=OWN | sign).status_code == 403
            signing_in = browser.post("/accordion/sign-in", data={"key": OWNER_TOKEN}, headers=OWN | sign)
            assert (signing_in.status_code, "set-cookie" in signing_in.headers) == (403, False)
    keyed = recording(keys=(ONE,))
    assert signed_in(keyed, "key-one").get("/accordion/", headers={"x-forwarded-for": "203.0.113.7"}).status_code == 200


async def test_on_this_machine_a_person_signs_in_to_erase_and_to_export_and_looks_without() -> None:
    setup = recording()
    session = await compacted(setup)
    view = f"pages/sessions/{session}"
    path = f"/accordion/{view}"
    stranger = client(setup, token="")
    assert "Sign in to export or erase" in stranger.get(path).text
    assert "/export" not in stranger.get(path).text
    for answer in (stranger.get(f"{path}/export"), stranger.get(f"{path}/erase")):
        assert (answer.status_code, location(answer).partition("?")[0]) == (303, SIGN_IN)
    assert stranger.post(f"{path}/erase", data={"confirm": session}, headers=OWN).status_code == 303
    assert stranger.get(f"/accordion/sessions/{session}").status_code == 200
    assert OWNER_TOKEN_FILE in stranger.get(SIGN_IN).text
    for token in ("", "token-of-another"):
        wrong = stranger.post(SIGN_IN, data={"key": token, "to": view}, headers=OWN)
        assert (wrong.status_code, "set-cookie" in wrong.headers) == (401, False)
    assert stranger.get(f"{SIGN_IN}?token=another").status_code == 401
    right = stranger.post(SIGN_IN, data={"key": OWNER_TOKEN, "to": view}, headers=OWN)
    assert (right.status_code, location(right)) == (303, path)
    cookie = right.headers["set-cookie"]
    assert OWNER_TOKEN not in cookie
    assert {"httponly", "samesite=strict"} <= {part.strip().lower() for part in cookie.split(";")}
    assert stranger.get(f"{path}/export").status_code == 200
    assert stranger.post(SIGN_OUT, headers=OWN).status_code == 303
    assert stranger.get(f"{path}/export").status_code == 303


async def test_the_pages_cookie_gives_other_sites_neither_the_api_nor_a_download() -> None:
    setup = recording()
    session = await compacted(setup)
    browser = owner(setup)
    assert browser.get("/accordion/export").status_code == 401
    assert browser.delete(f"/accordion/sessions/{session}").status_code == 401
    for site in ("same-site", "cross-site"):
        answer = browser.get(f"{PAGES}/sessions/{session}/export", headers={"sec-fetch-site": site})
        assert (answer.status_code, site) == (403, site)
    for site in ("same-origin", "none"):
        assert browser.get(f"{PAGES}/sessions/{session}/export", headers={"sec-fetch-site": site}).status_code == 200


async def test_nobody_sees_links_to_views_that_need_a_sign_in_first() -> None:
    stranger = client(recording(keys=(ONE,)), base_url="https://proxy.example")
    assert "<nav" not in stranger.get(SIGN_IN).text
    refused = stranger.post(SIGN_IN, data={"key": "key-one"}, headers={"origin": "https://elsewhere.example"})
    assert (refused.status_code, "<nav" in refused.text) == (403, False)
    assert "<nav" not in client(recording(loopback=False)).get("/accordion/").text
    # On this machine anybody may look; only erasing and exporting need the token.
    assert "<nav" in client(recording(), token="").get(SIGN_IN).text
    assert "<nav" in signed_in(recording(keys=(ONE,)), "key-one").get(f"{PAGES}/sessions/s-none").text


async def test_a_proxy_key_in_an_address_signs_nobody_in() -> None:
    browser = client(recording(keys=(ONE,)), base_url="https://proxy.example")
    answer = browser.get(f"{SIGN_IN}?token=key-one")
    assert (answer.status_code, "set-cookie" in answer.headers) == (200, False)


async def test_an_unknown_cookie_is_no_caller() -> None:
    browser = client(recording(keys=(ONE,)), base_url="https://proxy.example")
    answer = browser.get(f"{PAGES}/events", headers={"cookie": f"{COOKIE}=ffffffff.00"})
    assert answer.status_code == 303


# -- events ------------------------------------------------------------------------------------------------------------


async def test_an_open_page_is_told_of_its_own_tenants_exchanges_until_the_server_stops() -> None:
    setup = small_window_setup()
    await GrowingConversation(setup).turn(1)
    (exchange,) = setup.recorder.exchanges
    feed, stopping = ExchangeFeed(), asyncio.Event()
    events = feed.open("one", stopping)
    assert (await anext(events)).startswith(b"retry:")
    feed.exchange("one", exchange, "")
    feed.exchange("one", exchange, "")
    assert await anext(events) == b'event: change\ndata: {"sessions":["%s"]}\n\n' % exchange.session.encode()
    feed.exchange("two", exchange, "")
    stopping.set()
    assert [event async for event in events] == []


async def test_pages_beyond_the_limit_are_not_kept_open_and_a_closed_one_makes_room() -> None:
    feed = ExchangeFeed()
    opened = [feed.open("one", None) for _ in range(MAX_READERS)]
    for events in opened:
        await anext(events)
    with pytest.raises(TooManyReaders):
        feed.open("one", None)
    await opened[0].aclose()
    opened[0] = feed.open("one", None)
    for events in opened:
        await events.aclose()


async def test_one_tenants_pages_do_not_keep_out_another_tenants() -> None:
    feed = ExchangeFeed()
    opened = [feed.open("many", None) for _ in range(MAX_READERS)]
    for events in opened:
        await anext(events)
    for _ in range(MAX_READERS // 2):
        opened.append(feed.open("few", None))
        await anext(opened[-1])
    with pytest.raises(TooManyReaders):
        feed.open("few", None)
    for events in opened:
        await events.aclose()


# -- comparisons -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "least"), [(1, 6_000), (2_000, 1_000), (20_000, 200)])
def test_a_comparison_of_many_messages_shows_less_of_each(count: int, least: int) -> None:
    message = Message(b"", "user", (Text("x" * 10_000),), b"")
    blocks = [ComparedBlock("removed", 0, count - 1, tuple((index, message) for index in range(count)))]
    (view,) = view_blocks(blocks, [])
    assert len(view.client) == count
    (part,) = view.client[-1].parts
    assert (part.characters, part.left_out) == (10_000, 10_000 - least)


# -- drawings and links ------------------------------------------------------------------------------------------------


def test_a_curve_has_a_column_for_each_request_and_a_mark_for_each_compaction() -> None:
    points = [CurvePoint(100, 100), CurvePoint(900, 300, "f-1"), CurvePoint(5_000, 400)]
    svg = str(draw_curve(points, Thresholds().limits(1_000), 'three "requests"', "/c/"))
    assert svg.count('class="sent"') == 3
    assert svg.count('class="came"') == 2
    assert re.findall(r'<a href="([^"]+)"', svg) == ["/c/f-1"]
    assert "three &#34;requests&#34;" in svg
    assert all(0 <= float(number) <= 100 for number in re.findall(r'height="([\d.]+)%"', svg))


def test_the_mark_of_a_compaction_is_always_inside_the_curve() -> None:
    limits = Thresholds().limits(1_000)
    for came, offset in ((900, "-4"), (5_000, "21")):
        svg = str(draw_curve([CurvePoint(came, 300, "f-1")], limits, "one"))
        ((y, dy),) = re.findall(r'class="mark" x="[^"]+" y="([\d.]+)%" dy="([^"]+)"', svg)
        assert dy == offset
        assert (float(y) == 0) == (came == 5_000)


def test_the_small_curve_of_a_list_is_four_paths_however_many_requests_it_has() -> None:
    points = [CurvePoint(900, 300, "f-1"), CurvePoint(5_000, 400), CurvePoint(100, 100)] * 16
    svg = str(draw_small_curve(points, Thresholds().limits(1_000), "48 requests"))
    sent, came, marks = (re.findall(rf'class="{name}" d="([^"]*)"', svg)[0] for name in ("sent", "came", "mark-line"))
    assert (sent.count("M"), came.count("M"), marks.count("M")) == (48, 32, 16)
    assert svg.count("<path") == 4
    assert all(float(number) <= 36 for number in re.findall(r"v-([\d.]+)", svg))


@pytest.mark.parametrize(
    ("line", "links"),
    [
        ("[3] Do it.", [("3", 3)]),
        ("As in [3-5, 12].", [("3", 3), ("5", 5), ("12", 12)]),
        ("list[0] and [13] and [] and [a1]", [("0", 0)]),
        ("see art_0123456789ab.", [("art_0123456789ab", -1)]),
        ("nothing", []),
    ],
)
def test_citations_and_artifacts_are_links_and_the_text_stays_the_same(line: str, links: list[tuple[str, int]]) -> None:
    assert not any(piece.message >= 0 for piece in link_text(line))
    pieces = list(link_text(line, 13))
    assert "".join(piece.text for piece in pieces) == line
    assert [(piece.text, piece.message) for piece in pieces if piece.artifact or piece.message >= 0] == links


async def test_the_comparison_with_a_hold_out_is_on_the_page_and_in_the_api() -> None:
    setup = small_window_setup()
    http = client(setup)
    assert http.get("/accordion/savings").json()["holdout"] is None
    await GrowingConversation(setup).turn(1)
    assert "hold-out" not in http.get(f"{PAGES}/savings").text
    await write_sessions(setup.store, setup.clock.now(), "default", groups(spread(0.5, 80), spread(1.0, 40)))
    found = http.get("/accordion/savings").json()["holdout"]
    html = http.get(f"{PAGES}/savings").text
    assert found["verdict"] == "pays"
    assert found["sentence"] in html
    assert "80 with compaction, 40 in the hold-out" in html
    assert html.index("-50 % (") < html.index("Repeated calls")


async def test_a_model_for_which_compaction_is_stopped_is_on_the_page_and_in_the_api() -> None:
    setup = small_window_setup(config="compaction: {holdout: 5%, stop_if_worse: true}")
    http = client(setup)
    await GrowingConversation(setup).turn(1)
    await write_sessions(setup.store, setup.clock.now(), "default", groups(spread(1.2, 80), spread(1.0, 40)))
    assert http.get("/accordion/savings").json()["stops"] == []
    await setup.compaction_stops.run_round()
    (stop,) = http.get("/accordion/savings").json()["stops"]
    assert (stop["model"], stop["until"]) == ("gpt-5", setup.clock.now() + 30 * 86_400)
    assert stop["sentence"] in http.get(f"{PAGES}/savings").text


async def test_a_hold_out_with_few_sessions_and_a_loss_are_shown_as_such() -> None:
    setup = small_window_setup()
    http = client(setup)
    await GrowingConversation(setup).turn(1)
    await write_sessions(setup.store, setup.clock.now(), "default", groups([1.0] * 3, [1.0]))
    assert "There are too few sessions to say" in http.get(f"{PAGES}/savings").text
    await write_sessions(setup.store, setup.clock.now(), "default", groups(spread(2.0, 80), spread(1.0, 40)))
    assert '<p class="warn"><b>Compaction does not pay for this traffic: it costs 100 % more' in (
        http.get(f"{PAGES}/savings").text
    )

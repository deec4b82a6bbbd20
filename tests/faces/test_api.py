import json
from typing import Any

from starlette.testclient import TestClient

from proxy.core.errors import StoreUnavailable
from proxy.faces.api import Api
from proxy.faces.metrics import Metrics
from proxy.storage.ephemeral import EphemeralStore
from tests.fakes import FakeReply
from tests.world import CHAT, World

HELLO: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "one two three"}]}


def client(world: World) -> TestClient:
    api = Api(
        lambda: world.observe,
        lambda: world.forward.tenants,
        Metrics(),
        lambda error: world.forward.gauging.openai.error(error, "req-1"),
        "1.2.3",
        world.kitchen.wishes,
    )
    return TestClient(api.app(), base_url="http://127.0.0.1:8787")


async def test_models_are_shown_with_their_limits_as_separate_figures() -> None:
    world = World()
    await world.ask(CHAT, HELLO)
    (model,) = client(world).get("/accordion/models").json()["models"]
    assert model["model"] == "m"
    assert model["limits"] == {
        "window": 100_000,
        "conversation_trigger": 50_000,
        "conversation_target": 25_000,
        "generation_trigger": 83_000,
        "generation_target": 25_000,
        "hard_limit": 90_000,
    }
    assert model["last"]["tokens"] == 10
    assert model["totals"]["requests"] == 1


async def test_sessions_are_listed_and_each_has_its_last_exchanges() -> None:
    world = World()
    usage = {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10}
    world.upstream.answers = [FakeReply(pieces=(json.dumps({"choices": [], "usage": usage}).encode(),))]
    await world.ask(CHAT, HELLO, {"x-accordion-session": "label-12345"})
    await world.ask(CHAT, HELLO, {"x-accordion-session": "label-67890"})
    http = client(world)
    listed = http.get("/accordion/sessions").json()["sessions"]
    assert {session["label"] for session in listed} == {"label-12345", "label-67890"}
    assert len(http.get("/accordion/sessions?limit=1").json()["sessions"]) == 1
    (one,) = http.get("/accordion/sessions?label=label-12345").json()["sessions"]
    shown = http.get(f"/accordion/sessions/{one['id']}").json()
    assert shown["exchanges"][0]["usage"]["input"] == 9
    assert shown["limits"]["window"] == 100_000


async def test_errors_say_what_to_do_in_openais_shape() -> None:
    http = client(World())
    for path, status, words in (
        ("/accordion/sessions/s-unknown", 404, "no such session"),
        ("/accordion/sessions?limit=0", 400, "limit must be"),
        ("/accordion/sessions?limit=x", 400, "limit must be"),
        ("/accordion/sessions?limit=" + "9" * 5_000, 400, "limit must be"),
        ("/chat/completions", 404, "base URLs that end in /v1"),
    ):
        answer = http.get(path)
        assert answer.status_code == status
        assert words in answer.json()["error"]["message"]
    answer = http.post("/accordion/models")
    assert answer.status_code == 405
    assert answer.json()["error"]["code"] == "method_not_allowed"
    assert set(answer.headers["allow"].split(", ")) == {"GET", "HEAD"}


async def test_a_store_that_is_away_is_said_and_health_stays_good() -> None:
    class Away(EphemeralStore):
        available = False  # type: ignore[assignment]

        async def scan(self, *args: Any, **kwargs: Any) -> Any:
            raise StoreUnavailable("The store is away.")

    http = client(World(store=Away()))
    assert http.get("/healthz").json() == {"status": "ok"}
    assert http.get("/readyz").json() == {"status": "ok", "store": "unavailable"}
    answer = http.get("/accordion/sessions")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_unavailable")


async def test_the_root_says_where_clients_point() -> None:
    shown = client(World()).get("/").json()
    assert shown["openai_base_url"] == "http://127.0.0.1:8787/v1"
    assert shown["version"] == "1.2.3"


async def test_metrics_are_a_page_for_prometheus() -> None:
    answer = client(World()).get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    assert "accordion_requests_total" in answer.text

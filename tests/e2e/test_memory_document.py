"""The OpenAPI document of the memories, put to the test by schemathesis: a running proxy does as the document says."""

import pytest
import requests
from hypothesis import HealthCheck, given, settings

from accordion import __version__
from accordion.features.memory.memory_api import openapi_document
from tests.conftest import Start
from tests.e2e.memory_samples import RECORDED
from tests.e2e.proxy_api import get_page
from tests.proxy_process import Proxy
from tests.tiers import examples

pytestmark = pytest.mark.rest  # each test starts processes, or waits for real time


schemathesis = pytest.importorskip("schemathesis")

SCHEMA = schemathesis.openapi.from_dict(openapi_document(__version__))
OPERATIONS = {found.ok().label: found.ok() for found in SCHEMA.get_all_operations()}
RIGHT, WRONG = schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE
LINES = "POST /accordion/memory/import"
CASES = [(label, RIGHT) for label in OPERATIONS]
CASES += [(label, WRONG) for label in OPERATIONS if label.startswith("POST") and label != LINES]
# What the schema allows may still be refused, such as a search without words.
REFUSED = [schemathesis.checks.positive_data_acceptance]


@schemathesis.serializer("application/x-ndjson")
def lines(context, value):
    return value.encode("utf-8", "replace") if isinstance(value, str) else value


@pytest.fixture(scope="module")
def proxy(start: Start) -> Proxy:
    return start(RECORDED)


async def test_the_document_is_the_one_that_is_served(proxy: Proxy):
    assert (await get_page(proxy, "/accordion/memory/openapi.json")).json() == openapi_document(__version__)


@pytest.mark.parametrize(("label", "mode"), CASES, ids=[f"{label} {mode.value}" for label, mode in CASES])
def test_the_proxy_does_as_its_document_says(proxy: Proxy, label: str, mode):
    with requests.Session() as session:
        session.trust_env = False

        @settings(max_examples=examples(40), deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
        @given(case=OPERATIONS[label].as_strategy(generation_mode=mode))
        def check(case):
            case.call_and_validate(base_url=proxy.url, session=session, excluded_checks=REFUSED)

        check()

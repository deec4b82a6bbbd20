"""A client of the REST API and the page, the archive's routes included."""

from __future__ import annotations

from collections.abc import Sequence

import httpx
from starlette.testclient import TestClient

from accordion.archive.archive_reader import ArchiveReader
from accordion.archive.feature_records import FeatureRecords
from accordion.features.page.feed import ExchangeFeed
from accordion.features.page.routes import Pages
from accordion.features.page.services import PageServices
from accordion.features.page.views import Health
from accordion.http.admin_api import AdminApi, Administration
from accordion.http.api import RestApi
from accordion.http.archive_api import ArchiveApi
from accordion.http.metrics import Metrics
from accordion.protocols.registry import PROTOCOLS
from tests.pipeline_setup import OWNER_TOKEN, PipelineSetup


def location(answer: httpx.Response) -> str:
    """The path and the query to which a browser follows a redirect."""
    url = answer.request.url.join(answer.headers["location"])
    return url.raw_path.decode()


def client(
    setup: PipelineSetup,
    reader: ArchiveReader | None = None,
    feature_records: Sequence[FeatureRecords] = (),
    base_url: str = "http://127.0.0.1:8787",
    token: str = OWNER_TOKEN,
) -> TestClient:
    """A client of the API, with the token of the proxy's owner, and of the page."""
    sent = setup.builder.sent_history(lambda: setup.forward.prepare.compaction_step.list_meter.insertion_composer)
    reader = reader or setup.builder.archive_reader
    administration = Administration(
        lambda: setup.forward.tenants, setup.created_keys, setup.key_usage, lambda: setup.observe
    )

    pages = Pages(
        PageServices(
            lambda: setup.observe,
            lambda: setup.forward.tenants,
            reader,
            sent,
            setup.builder.session_overrides,
            (),
            feature_records,
            lambda tenant: Health("memory://", setup.store.is_available, "", 0, {}, []),
            ExchangeFeed(),
            setup.clock,
            setup.tasks,
            "1.2.3",
            administration,
        )
    )
    more = ArchiveApi(
        lambda: setup.observe,
        lambda: setup.forward.tenants,
        reader,
        setup.builder.session_overrides,
        feature_records,
        sent,
        setup.clock.now,
    )
    api = RestApi(
        lambda: setup.observe,
        lambda: setup.forward.tenants,
        Metrics(),
        lambda error: PROTOCOLS["chat"].render_error(error, "req-1"),
        "1.2.3",
        setup.builder.session_overrides,
        [
            *more.routes(),
            *AdminApi(lambda: setup.forward.tenants, administration, setup.clock.now).routes(),
            *pages.routes(),
        ],
        now=setup.clock.now,
    )
    headers = {"x-accordion-token": token}
    return TestClient(api.app(), base_url=base_url, headers=headers, follow_redirects=False)

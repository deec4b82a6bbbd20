"""The routes of the page: views with `GET`, changes with `POST`, both with the functions behind the REST API.

A view reads the tenant's records, makes the values of views.py, and renders a template. Errors become
a page that says what happened. A change answers with a redirect to the view that shows it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from http import HTTPStatus
from importlib.resources import files
from typing import Any, Literal
from urllib.parse import quote, urlencode

import msgspec
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from accordion.accounting.holdout_text import list_compared_rows
from accordion.accounting.ledger import DAYS, SavingsReport
from accordion.archive.archive_reader import ArtifactPage
from accordion.archive.artifacts import Artifact
from accordion.archive.feature_records import erase_feature_records
from accordion.archive.reader import ReadRequest, UnanswerableRequest
from accordion.compaction.session_overrides import MODES, MOST_PINS, SessionOverrides
from accordion.composition.features import PageView
from accordion.features.page import access
from accordion.features.page.addresses import (
    BASE,
    PATH,
    SIGN_IN,
    SIGN_OUT,
    ask_to_sign_in,
    base_of,
    check_view,
    redirect,
    root_of,
    view_of,
)
from accordion.features.page.charts import describe_cut, draw_curve, draw_days
from accordion.features.page.compaction_view import judge
from accordion.features.page.forms import Form, read_form
from accordion.features.page.owner_view import OwnerView
from accordion.features.page.rendering import format_client, render_template
from accordion.features.page.services import PageServices
from accordion.features.page.session_view import list_columns, list_compactions, list_requests
from accordion.features.page.tenants_view import VIEW as TENANTS_VIEW
from accordion.features.page.tenants_view import TenantsView
from accordion.features.page.views import (
    BlockView,
    agent_rows,
    link_text,
    model_rows,
    session_row,
    sum_totals,
    view_blocks,
)
from accordion.http.api_requests import (
    ReadableResponse,
    check_eraser,
    check_origin,
    find_origin,
    parse_number,
    stream_lines,
    unknown_session,
)
from accordion.http.proxy_app import STOPPING
from accordion.http.session_export import export_records
from accordion.http.session_requests import check_name, read_cursor, read_filter, write_cursor
from accordion.model.compaction import CompactedConversation
from accordion.model.conversation import Conversation
from accordion.model.errors import AccordionError, BadRequest, NotFound, Unauthorized
from accordion.model.records import Session
from accordion.pipeline.queries import SessionView, erase
from accordion.pipeline.sent_history import compare_histories
from accordion.pipeline.undo import find_compaction, undo_compaction
from accordion.sessions.tenants import OWNER_TOKEN_FILE, Caller, Tenants

_PAGE = 20
"""Sessions of a page."""
_FILTERS = ("q", "label", "model", "client", "compacted", "failed", "since", "until")
_ARTIFACTS = 50
_RECENT = 6
_OVERVIEW_DAYS = 30
_MAX_KEY = 1_024
_CONFIRMATION = "erase"
_MAX_POSITION = 10**12
_STATIC = {"page.css": "text/css", "page.js": "text/javascript", "icon.svg": "image/svg+xml"}
_DONE = {
    "compact": "The next request of this session is compacted, whatever its size.",
    "pin": "The result is pinned. No compaction touches it.",
    "unpin": "The result is no longer pinned.",
    "name": "The session has its new name.",
    "undo": "The compaction is undone. The next request is sent as it would be without it.",
    "mode": "The mode of this session is changed. It applies to the next request.",
}

View = Callable[[Request, Caller], Awaitable[Response]]
Change = Callable[[Request, Caller, Form], Awaitable[Response]]


class Pages:
    """The routes of the page."""

    def __init__(self, services: PageServices) -> None:
        self._services = services

    def routes(self) -> list[Route]:
        """Returns the routes."""
        views: list[tuple[str, View]] = [
            (f"{PATH}/", self._overview),
            (f"{BASE}/sessions", self._sessions),
            (f"{BASE}/sessions/{{id}}", self._session),
            (f"{BASE}/sessions/{{id}}/sent", self._last_sent),
            (f"{BASE}/sessions/{{id}}/compactions/{{compaction}}", self._compaction),
            (f"{BASE}/sessions/{{id}}/compactions/{{compaction}}/undo", self._confirm_undo),
            (f"{BASE}/sessions/{{id}}/erase", self._confirm_erasure),
            (f"{BASE}/sessions/{{id}}/export", self._export),
            (f"{BASE}/export", self._export_all),
            (f"{BASE}/erase", self._confirm_complete_erasure),
            (f"{BASE}/artifacts/{{artifact}}", self._artifact),
            (f"{BASE}/savings", self._savings),
            (f"{BASE}/health", self._health),
            (f"{BASE}/events", self._events),
        ]
        changes: list[tuple[str, Change]] = [
            (f"{BASE}/sessions/{{id}}/compactions/{{compaction}}/undo", self._undo),
            (f"{BASE}/sessions/{{id}}/compact", self._compact),
            (f"{BASE}/sessions/{{id}}/mode", self._set_mode),
            (f"{BASE}/sessions/{{id}}/name", self._rename),
            (f"{BASE}/sessions/{{id}}/pin", partial(self._set_pin, is_pinned=True)),
            (f"{BASE}/sessions/{{id}}/unpin", partial(self._set_pin, is_pinned=False)),
            (f"{BASE}/sessions/{{id}}/erase", self._erase),
            (f"{BASE}/erase", self._erase_all),
        ]
        views += [(f"{BASE}/{each.path}", partial(self._show_more, each)) for each in self._services.more_views]
        return [
            *(Route(path, partial(self._show, view)) for path, view in views),
            *(Route(path, partial(self._change, change), methods=["POST"]) for path, change in changes),
            *TenantsView(self._render, self._error, self._services).routes(),
            *OwnerView(self._render, self._error, self._services).routes(),
            Route(PATH, self._redirect),
            Route(SIGN_IN, self._sign_in, methods=["GET", "POST"]),
            Route(SIGN_OUT, self._sign_out, methods=["POST"]),
            Route(f"{BASE}/static/{{name}}", self._static),
        ]

    # -- requests -----------------------------------------------------------------

    async def _show(self, view: View, request: Request) -> Response:
        """Runs a view for the caller; an error becomes a page."""
        try:
            return await view(request, self._identify(request))
        except access.AdministratorSignedIn:
            return redirect(request, TENANTS_VIEW)
        except access.TenantNotChosen:
            return redirect(request, "tenant")
        except Unauthorized:
            return ask_to_sign_in(request)
        except AccordionError as error:
            return await self._error(request, error)

    async def _change(self, change: Change, request: Request) -> Response:
        """Runs a change for the caller, if a page of this address sends it."""
        try:
            caller = self._identify(request)
            access.check_change(request)
            return await change(request, caller, await read_form(request))
        except Unauthorized:
            return redirect(request, "sign-in")
        except AccordionError as error:
            return await self._error(request, error)

    def _identify(self, request: Request) -> Caller:
        return access.identify_reader(request, self._services.tenants(), self._services.clock.now())

    async def _render(
        self, template: str, request: Request, caller: Caller | None, status: int = 200, **values: Any
    ) -> Response:
        """Renders a template, in a thread: a long one would keep requests to the providers waiting."""
        services = self._services
        html = await services.tasks.offload(
            render_template,
            template,
            {
                "root": root_of(request),
                "base": base_of(request),
                "here": view_of(request),
                "version": services.version,
                "now": services.clock.now(),
                "tenant": caller.tenant.name if caller is not None else "",
                "status": status,
                "has_proxy_key": caller is not None and caller.has_proxy_key,
                "is_signed_in": caller is not None and caller.can_erase,
                "is_owner": access.is_owner(request, services.tenants(), services.clock.now()),
                "navigation": self._navigation(request, caller),
                "more_views": [
                    (view.path, f"{base_of(request)}/{view.path}", view.title) for view in services.more_views
                ],
                **values,
            },
            tuple(view.package for view in services.more_views),
        )
        return ReadableResponse(html, status, headers=access.HEADERS, media_type="text/html")

    def _navigation(self, request: Request, caller: Caller | None) -> Literal["views", "tenants", ""]:
        """Returns the views that a person may open: their tenant's, that of all tenants, or none before signing in."""
        try:
            return "views" if caller is not None or self._identify(request) else ""
        except access.AdministratorSignedIn:
            return "tenants"
        except AccordionError:
            return ""

    async def _error(self, request: Request, error: AccordionError) -> Response:
        title = HTTPStatus(error.status).phrase
        return await self._render("error.html", request, None, error.status, title=title, message=error.message)

    # -- views --------------------------------------------------------------------

    async def _redirect(self, request: Request) -> Response:
        return redirect(request, "", permanent=True)

    async def _overview(self, request: Request, caller: Caller) -> Response:
        """Shows the page, in a browser."""
        queries = self._services.queries()
        models = await queries.list_models(caller.tenant)
        sessions = await queries.list_sessions(caller.tenant, limit=_RECENT)
        savings = await queries.read_savings(caller.tenant, self._services.clock.now(), _OVERVIEW_DAYS)
        return await self._render(
            "overview.html",
            request,
            caller,
            models=model_rows(models),
            totals=sum_totals(models),
            costs=savings.total,
            chart=_draw_trend(savings, _OVERVIEW_DAYS),
            first=savings.first,
            last=savings.last,
            health=self._services.health(caller.tenant.name).requests,
            sessions=await self._session_rows(caller, sessions),
            origin=find_origin(request),
        )

    async def _sessions(self, request: Request, caller: Caller) -> Response:
        params = {name: value for name in _FILTERS if (value := request.query_params.get(name))}
        after = request.query_params.get("after", "")
        page = await self._services.queries().search_sessions(
            caller.tenant, read_filter(params), _PAGE, read_cursor(after, "after")
        )
        following = f"sessions?{urlencode({**params, 'after': write_cursor(page.last)})}" if page.last else ""
        return await self._render(
            "sessions.html",
            request,
            caller,
            sessions=await self._session_rows(caller, page.sessions),
            has_sessions=bool(page.models),
            models=[(name, name) for name in page.models],
            clients=[(name, format_client(name)) for name in page.clients],
            params=dict.fromkeys(_FILTERS, "") | params,
            query=urlencode(params),
            is_first=not after,
            next_page=following,
        )

    async def _session_rows(self, caller: Caller, sessions: list[Session]) -> list[Any]:
        queries, overrides = self._services.queries(), self._services.overrides
        stored = await overrides.load(caller.tenant, [session.id for session in sessions])
        return [
            session_row(session, each, await queries.list_exchanges(caller.tenant, session), queries.limits_of(session))
            for session, each in zip(sessions, stored, strict=True)
        ]

    async def _session(self, request: Request, caller: Caller) -> Response:
        queries, (view, overrides) = self._services.queries(), await self._find_session(request, caller)
        session = view.session
        before = parse_number(request.query_params.get("before", "0"), "before", 0, _MAX_POSITION)
        requests = await queries.read_exchanges(caller.tenant, session.id, before or None)
        points = await queries.read_points(caller.tenant, session.id)
        page = await self._list_artifacts(caller, session.id, request.query_params.get("artifacts", ""))
        agents = await queries.list_agents(caller, session.id)
        url = f"{base_of(request)}/sessions/{quote(session.id)}"
        columns = list_columns(points, url)
        label = f"The window over {len(points):,} requests, oldest first; the list below has the same figures"
        return await self._render(
            "session.html",
            request,
            caller,
            view=view,
            session=session,
            overrides=overrides,
            modes=MODES,
            settings_mode=queries.mode(session.model),
            url=url,
            tokens_left=_find_tokens_left(view, overrides),
            curve=draw_curve(columns, view.limits, label, f"{url}/compactions/") if columns else None,
            column_size=columns[0].requests if columns else 1,
            cut=describe_cut(columns, view.limits),
            compactions=list_compactions(points, overrides),
            requests=list_requests(requests) if requests is not None else [],
            older=requests.older if requests is not None else None,
            is_newest=not before,
            agents=list(agent_rows(agents or [], queries.limits_of)),
            artifacts=page.artifacts,
            next_artifacts=page.next,
            done=_DONE.get(request.query_params.get("done", ""), ""),
        )

    async def _list_artifacts(self, caller: Caller, session: str, after: str) -> ArtifactPage:
        """Returns the page of a session's artifacts after a cursor. Raises BadRequest for what is none."""
        try:
            return await self._services.archive.list_artifacts(caller.tenant, session, after, _ARTIFACTS)
        except ValueError as error:
            raise BadRequest("This page of the list is not known.", param="artifacts") from error

    async def _last_sent(self, request: Request, caller: Caller) -> Response:
        view, _ = await self._find_session(request, caller)
        sent = await self._services.sent.rebuild(caller, view.session, view.exchanges)
        ids = sent.compaction.artifacts if sent.compaction is not None else ()
        artifacts = await self._services.archive.load_records(caller.tenant, ids)
        blocks = await self._services.tasks.offload(_compare, sent.original.conversation, sent.history, artifacts)
        url = f"{base_of(request)}/sessions/{quote(view.session.id)}"
        return await self._render("sent.html", request, caller, session=view.session, url=url, sent=sent, blocks=blocks)

    async def _compaction(self, request: Request, caller: Caller) -> Response:
        services, (view, overrides) = self._services, await self._find_session(request, caller)
        name = request.path_params["compaction"]
        stored = await services.sent.find_compaction(caller, name)
        if stored is None:
            raise NotFound("There is no such compaction. It may have expired or been erased.")
        compaction = stored.compaction
        original = await services.sent.load_conversation(caller, view.session.id)
        history = services.sent.apply(caller, original, compaction) if original is not None else None
        blocks = []
        if original is not None and history is not None:
            artifacts = await services.archive.load_records(caller.tenant, compaction.artifacts)
            covered = msgspec.structs.replace(
                original.conversation, messages=original.conversation.messages[: compaction.covered_count]
            )
            blocks = await services.tasks.offload(_compare, covered, history, artifacts)
        made = await services.queries().find_compaction_exchange(caller.tenant, stored.session, name)
        url = f"{base_of(request)}/sessions/{quote(view.session.id)}"
        return await self._render(
            "compaction.html",
            request,
            caller,
            session=view.session,
            url=url,
            compaction=compaction,
            made=made,
            url_made=f"{base_of(request)}/sessions/{quote(stored.session)}",
            is_undone=name in overrides.undone,
            refusal=overrides.refusals.get(name, ""),
            is_own=stored.session == view.session.id,
            verdict=judge(
                compaction,
                made.exchange if made is not None else None,
                original.conversation.messages if original is not None and history is not None else (),
                overrides.pins,
            ),
            blocks=blocks,
        )

    async def _artifact(self, request: Request, caller: Caller) -> Response:
        offset = parse_number(request.query_params.get("offset", "0"), "offset", 0, 10**12)
        try:
            part = await self._services.archive.read(
                caller.tenant, ReadRequest(request.path_params["artifact"], offset)
            )
        except UnanswerableRequest as error:
            raise BadRequest(str(error)) from error
        if part is None:
            raise NotFound("There is no such artifact. It may have expired or been erased.")
        lines = [list(link_text(line)) for line in part.part.text.split("\n")]
        return await self._render("artifact.html", request, caller, part=part, artifact=part.artifact, lines=lines)

    async def _show_more(self, view: PageView, request: Request, caller: Caller) -> Response:
        """Shows a view of another feature."""
        return await self._render(view.template, request, caller, **await view.read_values(request, caller))

    async def _savings(self, request: Request, caller: Caller) -> Response:
        days = parse_number(request.query_params.get("days", "30"), "days", 1, DAYS)
        services = self._services
        queries, now = services.queries(), services.clock.now()
        report = await queries.read_savings(caller.tenant, now, days)
        comparison = await queries.read_holdout([caller.tenant], now, days)
        chart = _draw_trend(report, days)
        choices = (7, 30, 90, 365)
        return await self._render(
            "savings.html",
            request,
            caller,
            report=report,
            days=days,
            choices=choices,
            chart=chart,
            comparison=comparison,
            compared=list(list_compared_rows(comparison)) if comparison is not None else [],
        )

    async def _health(self, request: Request, caller: Caller) -> Response:
        return await self._render("health.html", request, caller, health=self._services.health(caller.tenant.name))

    async def _export(self, request: Request, caller: Caller) -> Response:
        access.check_download(request)
        check_eraser(caller)
        view, _ = await self._find_session(request, caller)
        return await self._stream_export(caller, view.session.id)

    async def _export_all(self, request: Request, caller: Caller) -> Response:
        access.check_download(request)
        check_eraser(caller)
        return await self._stream_export(caller, None)

    async def _stream_export(self, caller: Caller, session: str | None) -> Response:
        lines = aiter(
            export_records(self._services.queries(), self._services.archive.export_and_erasure, caller.tenant, session)
        )
        # A store that is away raises here, before the response begins.
        first = await anext(lines)
        file_name = f"{session or 'sessions'}.jsonl"
        headers = {**access.HEADERS, "content-disposition": f'attachment; filename="{file_name}"'}
        stream = stream_lines(first, lines, lambda message: {"type": "error", "message": message})
        return StreamingResponse(stream, headers=headers, media_type="application/x-ndjson")

    async def _events(self, request: Request, caller: Caller) -> Response:
        stopping = request.scope.get("state", {}).get(STOPPING)
        stream = self._services.feed.open(caller.tenant.name, stopping)
        headers = {**access.HEADERS, "x-accel-buffering": "no"}
        return StreamingResponse(stream, headers=headers, media_type="text/event-stream")

    async def _find_session(self, request: Request, caller: Caller) -> tuple[SessionView, SessionOverrides]:
        """Returns the path's session and its overrides. Raises NotFound."""
        view = await self._services.queries().find_session(caller.tenant, request.path_params["id"])
        if view is None:
            raise unknown_session()
        (overrides,) = await self._services.overrides.load(caller.tenant, [view.session.id])
        return view, overrides

    # -- changes ------------------------------------------------------------------

    async def _compact(self, request: Request, caller: Caller, form: Form) -> Response:
        view, _ = await self._find_session(request, caller)
        await self._services.overrides.demand_compaction(caller.tenant, view.session.id)
        return _back_to(request, view.session.id, "compact")

    async def _set_mode(self, request: Request, caller: Caller, form: Form) -> Response:
        view, _ = await self._find_session(request, caller)
        mode = next((each for each in MODES if each == form.get("mode")), None)
        if mode is None:
            raise BadRequest(f"The mode must be one of {', '.join(MODES)}.", param="mode")
        await self._services.overrides.set_mode(caller.tenant, view.session.id, mode)
        return _back_to(request, view.session.id, "mode")

    async def _rename(self, request: Request, caller: Caller, form: Form) -> Response:
        view, _ = await self._find_session(request, caller)
        name = check_name(form.get("name", ""))
        await self._services.queries().rename_session(caller.tenant, view.session, name, self._services.clock.now())
        return _back_to(request, view.session.id, "name")

    async def _set_pin(self, request: Request, caller: Caller, form: Form, *, is_pinned: bool) -> Response:
        view, overrides = await self._find_session(request, caller)
        call_id = form.get("call_id", "")
        if not 0 < len(call_id) <= 256:
            raise BadRequest("A call id has 1 to 256 characters.", param="call_id")
        pins = overrides.pins | {call_id} if is_pinned else overrides.pins - {call_id}
        if len(pins) > MOST_PINS:
            raise BadRequest(f"A session has {MOST_PINS} pins at most.", param="call_id")
        await self._services.overrides.set_pins(caller.tenant, view.session.id, pins)
        return _back_to(request, view.session.id, "pin" if is_pinned else "unpin")

    async def _confirm_undo(self, request: Request, caller: Caller) -> Response:
        services, (view, _) = self._services, await self._find_session(request, caller)
        stored = await find_compaction(services.sent, caller, view.session.id, request.path_params["compaction"])
        later = await services.sent.list_continued(caller, stored)
        return await self._render(
            "confirm_undo.html",
            request,
            caller,
            session=view.session,
            url=f"{base_of(request)}/sessions/{quote(view.session.id)}",
            compaction=stored.compaction,
            later=len(later) - 1,
        )

    async def _undo(self, request: Request, caller: Caller, form: Form) -> Response:
        view, _ = await self._find_session(request, caller)
        services, name = self._services, request.path_params["compaction"]
        if form.get("confirm") != name:
            raise BadRequest("The change was not confirmed.", param="confirm")
        await undo_compaction(services.sent, services.overrides, caller, view, name, services.clock.now())
        return _back_to(request, view.session.id, "undo")

    async def _confirm_erasure(self, request: Request, caller: Caller) -> Response:
        check_eraser(caller)
        view, _ = await self._find_session(request, caller)
        url = f"{base_of(request)}/sessions/{quote(view.session.id)}"
        return await self._render("confirm_erasure.html", request, caller, session=view.session, url=url)

    async def _erase(self, request: Request, caller: Caller, form: Form) -> Response:
        check_eraser(caller)
        view, _ = await self._find_session(request, caller)
        services, session = self._services, view.session.id
        if form.get("confirm") != session:
            raise BadRequest("The erasure was not confirmed.", param="confirm")
        _, erased = await erase(
            services.queries(), services.archive.export_and_erasure, services.overrides, caller, session
        )
        status = 200 if erased.verified else 409
        return await self._render(
            "erased.html", request, caller, status, session=session, sessions=1, records=[], erased=erased
        )

    async def _confirm_complete_erasure(self, request: Request, caller: Caller) -> Response:
        check_eraser(caller)
        nouns = [each.noun for each in self._services.feature_records]
        return await self._render("confirm_complete_erasure.html", request, caller, nouns=nouns)

    async def _erase_all(self, request: Request, caller: Caller, form: Form) -> Response:
        check_eraser(caller)
        services = self._services
        if form.get("confirm") != _CONFIRMATION:
            raise BadRequest(f"Type {_CONFIRMATION} to erase everything.", param="confirm")
        count, erased = await erase(
            services.queries(), services.archive.export_and_erasure, services.overrides, caller, None
        )
        records = await erase_feature_records(services.queries().store, caller.tenant, services.feature_records)
        status = 200 if erased.verified and not any(each.after for each in records) else 409
        return await self._render(
            "erased.html", request, caller, status, session="", sessions=count, records=records, erased=erased
        )

    # -- signing in ---------------------------------------------------------------

    async def _sign_in(self, request: Request) -> Response:
        try:
            tenants = self._services.tenants()
            check_origin(dict(reversed(request.headers.raw)), tenants)
            target = check_view(request.query_params.get("to", ""))
            if not (tenants.has_proxy_keys or tenants.is_local_only or tenants.has_owner):
                return redirect(request, "")
            key = request.query_params.get("token", "") if not tenants.has_proxy_keys else ""
            if request.method == "POST":
                access.check_change(request)
                form = await read_form(request)
                key, target = form.get("key", "").strip(), check_view(form.get("to", ""))
            elif not key:
                return await self._render_sign_in(request, tenants, target)
            ticket = tenants.issue_ticket(key[:_MAX_KEY], self._services.clock.now() + access.TICKET_SECONDS)
            if ticket is None:
                return await self._render_sign_in(request, tenants, target, 401)
            response = redirect(request, target)
            access.set_ticket(response, request, ticket)
            return response
        except AccordionError as error:
            return await self._error(request, error)

    async def _render_sign_in(self, request: Request, tenants: Tenants, target: str, status: int = 200) -> Response:
        file = OWNER_TOKEN_FILE if not tenants.has_proxy_keys else ""
        purpose = "export or erase" if tenants.is_local_only else "see this page"
        return await self._render(
            "sign_in.html", request, None, status, target=target, token_file=file, purpose=purpose
        )

    async def _sign_out(self, request: Request) -> Response:
        try:
            access.check_change(request)
        except AccordionError as error:
            return await self._error(request, error)
        response = redirect(request, "")
        access.set_ticket(response, request, "")
        return response

    # -- files --------------------------------------------------------------------

    async def _static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in _STATIC:
            return await self._error(request, NotFound("There is no such file."))
        content = files(__package__).joinpath("static", name).read_bytes()
        # The address has the version, so a new version is loaded at once.
        headers = {**access.HEADERS, "cache-control": "max-age=86400"}
        return Response(content, headers=headers, media_type=_STATIC[name])


def _compare(original: Conversation, history: CompactedConversation, artifacts: Sequence[Artifact]) -> list[BlockView]:
    return view_blocks(compare_histories(original, history), artifacts)


def _draw_trend(report: SavingsReport, days: int) -> Markup | None:
    """Draws the costs of each day; None if there are none, or of one day only: a lone column is no trend."""
    if not report.total.original_cost or len(report.days) <= 1:
        return None
    return draw_days(report.days, f"Costs of the last {days} days")


def _find_tokens_left(view: SessionView, overrides: SessionOverrides) -> int | None:
    """Returns the tokens left before the session's next compaction, if it is near."""
    utilization = view.session.utilization
    if utilization is None or overrides.mode != "auto":
        return None
    return view.limits.tokens_left(utilization.occupied_tokens)


def _back_to(request: Request, session: str, done: str) -> Response:
    return redirect(request, f"pages/sessions/{quote(session)}?done={done}")

"""The API of the archive: artifacts, original transcripts, exports and erasure, for one tenant at a time.

Every lookup uses the caller's own tenant key. So another tenant's data gets exactly the answer of missing data, by the
same steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import asdict
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from accordion.archive.archive_reader import ArchiveReader
from accordion.archive.feature_records import FeatureRecords, erase_feature_records
from accordion.archive.reader import ReadRequest, UnanswerableRequest
from accordion.compaction.session_overrides import SessionOverrideStore
from accordion.http.api_requests import (
    SAFE,
    ReadableResponse,
    identify_caller,
    identify_eraser,
    json_response,
    parse_number,
    stream_lines,
    unknown_session,
)
from accordion.http.json_views import artifact_json, artifact_part_json, compared_block_json
from accordion.http.session_export import export_records
from accordion.model.errors import BadRequest, InvalidPath, NotFound
from accordion.pipeline.queries import Queries, erase
from accordion.pipeline.sent_history import SentHistory, SentRequest, compare_histories, find_artifacts
from accordion.pipeline.undo import undo_compaction
from accordion.sessions.tenants import Caller, Tenants

_MOST_LISTED = 1_000
_LARGEST = 10**12


class ArchiveApi:
    """The routes of the archive. Endpoints raise AccordionError; the application makes the response."""

    def __init__(
        self,
        queries: Callable[[], Queries],
        tenants: Callable[[], Tenants],
        archive: ArchiveReader,
        overrides: SessionOverrideStore,
        feature_records: Sequence[FeatureRecords],
        sent: SentHistory,
        now: Callable[[], float],
    ) -> None:
        self._queries = queries
        self._tenants = tenants
        self._archive = archive
        self._overrides = overrides
        self._feature_records = feature_records
        self._sent = sent
        self._now = now

    def routes(self) -> list[Route]:
        """Returns the routes."""
        return [
            Route("/accordion/artifacts", self._artifacts),
            Route("/accordion/artifacts/{id}", self._artifact),
            Route("/accordion/sessions/{id}", self._erase_session, methods=["DELETE"]),
            Route("/accordion/sessions/{id}/original", self._original),
            Route("/accordion/sessions/{id}/sent", self._last_sent),
            Route("/accordion/sessions/{id}/diff", self._diff),
            Route("/accordion/sessions/{id}/compactions/{compaction}/undo", self._undo, methods=["POST"]),
            Route("/accordion/sessions/{id}/export", self._export_session),
            Route("/accordion/export", self._export),
            Route("/accordion/archive", self._erase, methods=["DELETE"]),
        ]

    # -- reading ----------------------------------------------------------------

    async def _artifacts(self, request: Request) -> Response:
        """Lists what was removed from a session's prompt, in the order of the conversation.

        Parameters: `session`, `limit`, `after`.
        """
        caller, params = self._caller(request), request.query_params
        session = params.get("session", "")
        if not session:
            raise BadRequest("Name a session: /accordion/artifacts?session=…", param="session")
        limit = parse_number(params.get("limit", "100"), "limit", 1, _MOST_LISTED)
        try:
            page = await self._archive.list_artifacts(caller.tenant, session, params.get("after", ""), limit)
        except ValueError as error:
            raise BadRequest("after must be the value of `next` in another page.", param="after") from error
        if not page.artifacts:
            await self._check_session(caller, session)
        artifacts = [artifact_json(artifact) for artifact in page.artifacts]
        return json_response({"session": session, "artifacts": artifacts, "next": page.next or None})

    async def _artifact(self, request: Request) -> Response:
        """Returns one artifact as text, with its record if JSON is accepted.

        Parameters for a part of it: `offset`, `limit`, `pattern`, `path`.
        """
        caller, params = self._caller(request), request.query_params
        read_request = ReadRequest(
            request.path_params["id"],
            parse_number(params.get("offset", "0"), "offset", -_LARGEST, _LARGEST),
            parse_number(params.get("limit", "0"), "limit", 0, _LARGEST),
            params.get("pattern", ""),
            params.get("path", ""),
        )
        try:
            excerpt = await self._archive.read(caller.tenant, read_request)
        except (UnanswerableRequest, InvalidPath) as error:
            raise BadRequest(str(error)) from error
        if excerpt is None:
            raise NotFound(
                "There is no such artifact. It may have expired or been erased.",
                code="artifact_not_found",
            )
        if "application/json" in request.headers.get("accept", ""):
            return json_response(artifact_part_json(excerpt))
        more = {"x-accordion-next": str(excerpt.part.next)} if excerpt.part.next else {}
        return ReadableResponse(excerpt.part.text, headers=SAFE | more, media_type="text/plain; charset=utf-8")

    async def _original(self, request: Request) -> Response:
        """Returns the whole conversation as the client sent it, as a request in the client's protocol."""
        caller, session = self._caller(request), request.path_params["id"]
        transcript = await self._archive.transcripts.original(caller.tenant, session)
        if transcript is None:
            await self._check_session(caller, session)
            raise NotFound(
                "This session has no transcript: the setting `archive.record` chooses the sessions that are recorded.",
                code="original_not_found",
            )
        headers = {"x-accordion-protocol": transcript.protocol_name, "x-accordion-first": str(transcript.first)}
        if transcript.missing:
            headers["x-accordion-missing"] = str(transcript.missing)
        return ReadableResponse(transcript.body, headers=SAFE | headers, media_type="application/json")

    async def _last_sent(self, request: Request) -> Response:
        """Returns the last forwarded request: what the model sees of the session."""
        _, sent = await self._reconstruct(request)
        headers = {"x-accordion-protocol": sent.original.protocol.name}
        if sent.compaction is not None:
            headers["x-accordion-compaction-id"] = sent.compaction.id
        return ReadableResponse(sent.body, headers=SAFE | headers, media_type="application/json")

    async def _diff(self, request: Request) -> Response:
        """Compares the last forwarded request with the original, block by block, with the artifacts of each."""
        caller, sent = await self._reconstruct(request)
        ids = sent.compaction.artifacts if sent.compaction is not None else ()
        artifacts = await self._archive.load_records(caller.tenant, ids)
        blocks = compare_histories(sent.original.conversation, sent.history)
        return json_response(
            {
                "session": request.path_params["id"],
                "protocol": sent.original.protocol.name,
                "compaction": sent.compaction.id if sent.compaction is not None else None,
                "blocks": [compared_block_json(block, find_artifacts(block, artifacts)) for block in blocks],
            }
        )

    async def _reconstruct(self, request: Request) -> tuple[Caller, SentRequest]:
        """Reconstructs the last forwarded request of the path's session. Raises NotFound."""
        caller = self._caller(request)
        view = await self._queries().find_session(caller.tenant, request.path_params["id"])
        if view is None:
            raise unknown_session()
        return caller, await self._sent.rebuild(caller, view.session, view.exchanges)

    async def _undo(self, request: Request) -> Response:
        """Undoes a compaction, and those that were made from it: the next request is as it would be without them."""
        caller = self._caller(request)
        view = await self._queries().find_session(caller.tenant, request.path_params["id"])
        if view is None:
            raise unknown_session()
        undone = await undo_compaction(
            self._sent, self._overrides, caller, view, request.path_params["compaction"], self._now()
        )
        return json_response({"session": view.session.id, "undone": sorted(undone)})

    # -- export -----------------------------------------------------------------

    async def _export_session(self, request: Request) -> Response:
        """Exports everything that is stored for a session, as JSON Lines."""
        caller, session = self._eraser(request), request.path_params["id"]
        if not await self._archive.has_session(caller.tenant, session):
            await self._check_session(caller, session)
        return await self._stream_export(caller, session)

    async def _export(self, request: Request) -> Response:
        """Exports everything that is stored for the tenant, as JSON Lines."""
        return await self._stream_export(self._eraser(request), None)

    async def _stream_export(self, caller: Caller, session: str | None) -> Response:
        lines = aiter(export_records(self._queries(), self._archive.export_and_erasure, caller.tenant, session))
        # A store that is away raises here, before the response begins.
        first = await anext(lines)
        return StreamingResponse(
            stream_lines(first, lines, _incomplete_line), headers=SAFE, media_type="application/x-ndjson"
        )

    # -- erasing ----------------------------------------------------------------

    async def _erase_session(self, request: Request) -> Response:
        """Erases a session, and verifies that it is gone."""
        caller, session = self._eraser(request), request.path_params["id"]
        if not await self._archive.has_session(caller.tenant, session):
            await self._check_session(caller, session)
        return await self._erase_and_report(caller, session)

    async def _erase(self, request: Request) -> Response:
        """Erases everything that is stored for the tenant, including the records of features."""
        return await self._erase_and_report(self._eraser(request), None)

    async def _erase_and_report(self, caller: Caller, session: str | None) -> Response:
        """Erases a session, or all of a tenant, and returns the counts. Concurrent writes may survive."""
        count, erased = await erase(self._queries(), self._archive.export_and_erasure, self._overrides, caller, session)
        result: dict[str, Any] = {} if session is None else {"session": session}
        result |= {"sessions": count, **asdict(erased)}
        if session is None:
            records = await erase_feature_records(self._queries().store, caller.tenant, self._feature_records)
            result |= {each.noun: {"before": each.before, "after": each.after} for each in records}
            result["verified"] = erased.verified and not any(each.after for each in records)
        return json_response(result, 200 if result["verified"] else 409)

    # -- caller -----------------------------------------------------------------

    def _caller(self, request: Request) -> Caller:
        return identify_caller(request.headers.raw, self._tenants())

    def _eraser(self, request: Request) -> Caller:
        return identify_eraser(request.headers.raw, self._tenants())

    async def _check_session(self, caller: Caller, session: str) -> None:
        """Raises NotFound if the tenant has no such session."""
        if await self._queries().find_session(caller.tenant, session) is None:
            raise unknown_session()


def _incomplete_line(message: str) -> object:
    """Returns the last line of an incomplete export; a complete one ends with its counts."""
    return {"type": "error", "message": message}

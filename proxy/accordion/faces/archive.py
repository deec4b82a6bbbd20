"""What is kept, for people: artifacts, histories as they were said, exports; and its erasure. One tenant's at a time.

Whatever is asked for is looked for under the caller's own key. So what belongs to another tenant is answered exactly as
what is not there, by the same steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from accordion.archive.paths import BadPath
from accordion.archive.reader import BadRequest as Unanswerable
from accordion.archive.reader import Wish
from accordion.archive.reading_room import ReadingRoom
from accordion.compaction.wishes import Wishes
from accordion.core.errors import BadRequest, NotFound
from accordion.core.memories import Memories
from accordion.faces.asked import SAFE, answered, caller_of, number, unknown_session
from accordion.faces.shown import shown_artifact, shown_lent
from accordion.faces.streaming import in_pieces
from accordion.identity.tenants import Caller, Tenants
from accordion.observe import Observe, erase, forget_memories

_MOST_LISTED = 1_000
_LARGEST = 10**12


class ArchiveApi:
    """The routes of the archive. Errors are raised, for the application that the routes belong to."""

    def __init__(
        self,
        observe: Callable[[], Observe],
        tenants: Callable[[], Tenants],
        room: ReadingRoom,
        wishes: Wishes,
        memories: Callable[[], Memories],
    ) -> None:
        self._observe = observe
        self._tenants = tenants
        self._room = room
        self._wishes = wishes
        self._memories = memories

    def routes(self) -> list[Route]:
        """Where it answers."""
        return [
            Route("/accordion/artifacts", self._artifacts),
            Route("/accordion/artifacts/{id}", self._artifact),
            Route("/accordion/sessions/{id}", self._erase_session, methods=["DELETE"]),
            Route("/accordion/sessions/{id}/original", self._original),
            Route("/accordion/sessions/{id}/export", self._export_session),
            Route("/accordion/export", self._export),
            Route("/accordion/archive", self._erase, methods=["DELETE"]),
        ]

    # -- reading ----------------------------------------------------------------

    async def _artifacts(self, request: Request) -> Response:
        caller, given = self._caller(request), request.query_params
        session = given.get("session", "")
        if not session:
            raise BadRequest("Name a session: /accordion/artifacts?session=…", param="session")
        limit = number(given.get("limit", "100"), "limit", 1, _MOST_LISTED)
        try:
            page = await self._room.listed(caller.space, session, given.get("after", ""), limit)
        except ValueError as error:
            raise BadRequest("after must be the value of `next` in another page.", param="after") from error
        if not page.artifacts:
            await self._known(caller, session)
        shown = [shown_artifact(each) for each in page.artifacts]
        return answered({"session": session, "artifacts": shown, "next": page.next or None})

    async def _artifact(self, request: Request) -> Response:
        caller, given = self._caller(request), request.query_params
        wish = Wish(
            request.path_params["id"],
            number(given.get("offset", "0"), "offset", -_LARGEST, _LARGEST),
            number(given.get("limit", "0"), "limit", 0, _LARGEST),
            given.get("pattern", ""),
            given.get("path", ""),
        )
        try:
            lent = await self._room.read(caller.space, wish)
        except (Unanswerable, BadPath) as error:
            raise BadRequest(str(error)) from error
        if lent is None:
            raise NotFound(
                "There is no such artifact. It may have expired or been erased.",
                code="artifact_not_found",
            )
        if "application/json" in request.headers.get("accept", ""):
            return answered(shown_lent(lent))
        more = {"x-accordion-next": str(lent.part.next)} if lent.part.next else {}
        return Response(lent.part.text, headers=SAFE | more, media_type="text/plain; charset=utf-8")

    async def _original(self, request: Request) -> Response:
        caller, session = self._caller(request), request.path_params["id"]
        found = await self._room.transcripts.original(caller.space, session)
        if found is None:
            await self._known(caller, session)
            raise NotFound(
                "This session has no transcript: the setting `archive.record` chooses the sessions that are recorded.",
                code="original_not_found",
            )
        told = {"x-accordion-dialect": found.dialect, "x-accordion-first": str(found.first)}
        if found.missing:
            told["x-accordion-missing"] = str(found.missing)
        return Response(found.body, headers=SAFE | told, media_type="application/json")

    # -- giving out -------------------------------------------------------------

    async def _export_session(self, request: Request) -> Response:
        caller, session = self._caller(request), request.path_params["id"]
        if not await self._room.holds(caller.space, session):
            await self._known(caller, session)
        return await self._lines(caller, session)

    async def _export(self, request: Request) -> Response:
        return await self._lines(self._caller(request), None)

    async def _lines(self, caller: Caller, session: str | None) -> Response:
        lines = aiter(self._room.custody.export(caller.space, session))
        # A store that is away is found out before anything is said.
        first = await anext(lines)
        return StreamingResponse(in_pieces(first, lines, _broken), headers=SAFE, media_type="application/x-ndjson")

    # -- erasing ----------------------------------------------------------------

    async def _erase_session(self, request: Request) -> Response:
        caller, session = self._caller(request), request.path_params["id"]
        if not await self._room.holds(caller.space, session):
            await self._known(caller, session)
        return await self._erased(caller, session)

    async def _erase(self, request: Request) -> Response:
        return await self._erased(self._caller(request), None)

    async def _erased(self, caller: Caller, session: str | None) -> Response:
        """Removes it, and says how much that was. What is being written meanwhile may be left."""
        count, erased = await erase(self._observe(), self._room.custody, self._wishes, caller, session)
        said: dict[str, Any] = {} if session is None else {"session": session}
        said |= {"sessions": count, **asdict(erased)}
        if session is None:
            before, after = await forget_memories(self._memories(), self._observe().store, caller)
            said |= {"memories": {"before": before, "after": after}, "verified": erased.verified and not after}
        return answered(said, 200 if said["verified"] else 409)

    # -- who asks ---------------------------------------------------------------

    def _caller(self, request: Request) -> Caller:
        return caller_of(request.headers.raw, self._tenants())

    async def _known(self, caller: Caller, session: str) -> None:
        """Raises NotFound where the tenant has no such session."""
        if await self._observe().session(caller.tenant, session) is None:
            raise unknown_session()


def _broken(message: str) -> object:
    """The last line of an export that could not be finished; one that is whole ends with its counts."""
    return {"type": "error", "message": message}

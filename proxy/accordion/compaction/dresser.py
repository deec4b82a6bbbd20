"""Where requests that a fold is in force for, that show something of others to read, or that name a session memory, get
what else goes out with them: our tool, weaves and recalls."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

from accordion.compaction.dressing import Wardrobe, unread
from accordion.compaction.overlays import Overlays
from accordion.compaction.reading import WrittenReader
from accordion.core.conversation import Conversation
from accordion.core.edits import Folded
from accordion.core.values import dataclass
from accordion.core.weaves import Overlay
from accordion.dialects.base import Dialect
from accordion.dialects.splice import ToolOffer, Weaver

_log = logging.getLogger("accordion")


@dataclass(frozen=True, slots=True)
class Dresser:
    """Finds overlays and puts them in place; offers our tool where the archive has something to read.

    `weavers` are by the dialect's name. `tool` gives our tool under a name that is not among those that are taken; it
    is None where reading back is off. What was woven in stays all the same.
    """

    overlays: Overlays
    weavers: Mapping[str, Weaver]
    reader: WrittenReader
    tool: Callable[[frozenset[str]], ToolOffer] | None = None
    wardrobe: Wardrobe = field(default_factory=Wardrobe)

    def offered(self, dialect: Dialect, conversation: Conversation) -> Conversation:
        """The conversation with our tool offered, whether or not there is something to read yet; the very same where it
        is not. Never fails."""
        weaver = self.weavers.get(dialect.name)
        try:
            offer = self._offer(weaver, conversation) if weaver is not None else None
            return self.wardrobe.offered(dialect, weaver, conversation, offer) if weaver and offer else conversation
        except Exception:
            _log.exception("the read_artifact tool could not be added to a request")
            return conversation

    async def dress(
        self,
        dialect: Dialect,
        space: bytes,
        scope: bytes,
        client: Conversation,
        folded: Folded,
        *,
        fresh: bool,
        woven: bool = True,
        reads: bool = False,
    ) -> tuple[Folded, str]:
        """The list as it is forwarded, and the name under which our tool is offered, empty where it is not.

        `client` is the list as the client sent it, `space` the tenant's key, `scope` what divides conversations within
        the tenant. `fresh`: other workers may know more. `woven`: whether what was read and recalled is put in.
        `reads`: whether there is something to read beside what folds took out. Never fails: then the list stays as it
        is.
        """
        compaction, weaver = folded.compaction, self.weavers.get(dialect.name)
        if weaver is None or client.previous is not None:
            return folded, ""
        try:
            since = compaction.covered if compaction is not None else 0
            reads = reads or (compaction is not None and bool(compaction.artifacts))
            found: Sequence[Overlay] = await self.overlays.find(space, scope, client.chain, since, fresh=fresh)
            if not woven:
                found = unread(weaver, found)
            offer = self._offer(weaver, client) if reads else None
            shown = self.wardrobe.dressed(dialect, weaver, folded, found, offer, self.reader.of(dialect, space))
        except Exception:
            _log.exception("earlier insertions could not be put into a request")
            return folded, ""
        listed = shown.conversation.tools is not folded.conversation.tools
        return shown, offer.name if offer is not None and listed else ""

    async def bared(self, dialect: Dialect, space: bytes, scope: bytes, folded: Folded) -> Folded:
        """The client's list where nothing is to be folded, without what led to a reading back alone: a provider refuses
        that. The very same where nothing of it stands there. `space`, `scope`: see `dress`. Never fails: then the list
        stays as it is."""
        client, weaver = folded.conversation, self.weavers.get(dialect.name)
        if weaver is None or client.previous is not None or not weaver.stranded(client.messages):
            return folded
        try:
            await self.overlays.learn(space, scope, client.chain)
            found = unread(weaver, await self.overlays.find(space, scope, client.chain, 0, fresh=False))
            shown = self.wardrobe.dressed(dialect, weaver, folded, found, None, self.reader.of(dialect, space))
        except Exception:
            _log.exception("reasoning that only led to a read-back could not be removed")
            return folded
        # Where all of it is legal it leaves in its own bytes.
        return shown if len(shown.conversation.messages) < len(client.messages) else folded

    def _offer(self, weaver: Weaver, client: Conversation) -> ToolOffer | None:
        if self.tool is None:
            return None
        offer = self.tool(frozenset())
        # Its name is looked for in the bytes first: the tools of an agent take a tenth of a millisecond to read.
        name = offer.name.encode()
        for value in client.envelope.values():
            if name in value:
                return self.tool(weaver.names(client.envelope))
        return offer

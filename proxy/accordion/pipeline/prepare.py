"""The fourth step as a whole: compacts a request as decided, or finds out what a compaction would do.

If a compaction is due and the provider keeps the history, the whole history is first put in place of its id
(history_reconstruction.py). compact.py compacts by the policy's decision; a handler may do it in another way.

In the mode `observe` the request passes unchanged, and a dry run shows what `auto` would do with it. The dry run is the
same request, measured and prepared once more by the same code: it stores nothing, asks no model, and is thrown away. So
both modes decide alike. Its outcome becomes the report of the request that passes.
"""

from __future__ import annotations

import logging

import msgspec
from msgspec.structs import replace

from accordion.compaction.reporting import report_dry_run
from accordion.model.budget import END_THREAD
from accordion.pipeline.compact import CompactionStep
from accordion.pipeline.history_reconstruction import HistoryReconstruction, pass_unchanged
from accordion.pipeline.measure import Measurer
from accordion.pipeline.provider_items import NotReconstructed
from accordion.pipeline.request import MeasuredRequest, PassthroughRequest, PreparedRequest

_log = logging.getLogger("accordion")


class Preparer(msgspec.Struct, frozen=True):
    """Makes measured requests ready to be sent."""

    measurer: Measurer
    history_reconstruction: HistoryReconstruction
    compaction_step: CompactionStep

    async def __call__(self, request: MeasuredRequest) -> PreparedRequest:
        """Returns the request as it is sent: compacted if that was decided, with a report if it is only observed."""
        prepared = await self._compact(request)
        if not request.is_observed or prepared.compaction_outcome is not None:
            # A client that asks for nothing but a compaction gets it in any case.
            return prepared
        try:
            return await self._add_report(prepared, request)
        except Exception:
            _log.exception(
                "a compaction could not be tried; the request is forwarded without a report",
                extra={"request_id": request.inbound.request_id},
            )
            return prepared

    async def _add_report(self, prepared: PreparedRequest, request: MeasuredRequest) -> PreparedRequest:
        """Returns the request, ready to be sent as it came, with the report of a dry run."""
        measured = await self.measurer.measure(replace(request, is_dry_run=True))
        if isinstance(measured, PassthroughRequest):
            return prepared
        tried = await self._compact(measured)
        if not tried.is_estimated:
            # The dry run has counted the messages, so that this takes no time.
            prepared = await self.compaction_step.list_meter.count_estimated(prepared)
        decision = tried.decision
        if decision.action in (END_THREAD, "refuse"):
            decision = replace(decision, reason=f"{decision.reason}; this is only reported, and the request passes")
        return replace(
            prepared,
            decision=replace(decision, action="pass", group=""),
            compaction_outcome=report_dry_run(tried.compaction_outcome),
        )

    async def _compact(self, request: MeasuredRequest) -> PreparedRequest:
        """Compacts the request if that was decided. The provider's history is put in place of its id first."""
        if request.decision.action != "reconstruct":
            return await prepare_by_handler(request, self.compaction_step)
        reconstructed = await self.history_reconstruction.reconstruct(request)
        if isinstance(reconstructed, NotReconstructed):
            reason = f"{request.decision.reason}; {reconstructed.reason}"
            return await self.compaction_step.compact(pass_unchanged(request, reason))
        prepared = await self.compaction_step.compact(reconstructed)
        if prepared.rewritten_body is not None and prepared.decision.action != "refuse":
            return prepared
        # There was nothing to compact, or compaction failed, or the history is too long in any form. The response
        # reports a compaction that failed, but not one that was made and is not sent.
        unchanged = await self.compaction_step.compact(pass_unchanged(request, prepared.decision.reason))
        outcome = prepared.compaction_outcome if prepared.rewritten_body is None else None
        return replace(unchanged, compaction_outcome=outcome)


async def prepare_by_handler(request: MeasuredRequest, compaction_step: CompactionStep) -> PreparedRequest:
    """Makes a request ready to be sent: by its handler if it has one, else by the decision."""
    if request.handler is None:
        return await compaction_step.compact(request)
    return await request.handler.prepare(request, compaction_step.compact)

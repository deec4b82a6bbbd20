"""Compaction that clients ask for and their providers lack: context edits, triggers, blocks, `/responses/compact`."""

from __future__ import annotations

from accordion.composition.features import Core, Feature, RunningFeature


def open_client_compaction(core: Core) -> RunningFeature:
    """Opens the hook that reads what clients ask for."""
    from accordion.features.client_compaction.edit_handler import EditServices  # noqa: PLC0415  # not for commands
    from accordion.features.client_compaction.edit_hook import ContextEditHook, MissingFeatures  # noqa: PLC0415
    from accordion.stores.encryption import open_block_sealer  # noqa: PLC0415

    sealer = open_block_sealer(core.settings().archive.key.reveal())
    services = EditServices(core.renderer, sealer, core.count_message, core.clock, core.tasks)
    feature = RunningFeature()
    feature.request_hooks = (ContextEditHook(services, MissingFeatures(core.clock.now)),)
    return feature


FEATURE = Feature(open=open_client_compaction)

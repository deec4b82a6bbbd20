"""Recorded conversations of real agents have no problems, wherever a request was made of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from accordion.model.conversation import Message
from tests.histories import ProtocolName
from tests.protocols.edit_samples import SPOKEN, message
from tests.recordings import read_recording, recorded_cases, transcripts, write_entry

SHORTEST_STEP = 7


@pytest.mark.skipif(not transcripts(), reason="the recorded transcripts are not here (ACCORDION_TRAJECTORIES)")
@pytest.mark.parametrize(("path", "name"), recorded_cases())
def test_requests_of_recorded_transcripts_have_no_problems(path: Path, name: ProtocolName) -> None:
    looked = 0
    for said in read_recording(path, 2):
        listed: list[Message] = []
        for at, entry in enumerate(said):
            if entry["role"] == "assistant" and at % SHORTEST_STEP < 2:
                assert SPOKEN[name].find_problems(listed) == []
                looked += 1
            listed += [message(SPOKEN[name], one) for one in write_entry(entry, name)]
    assert looked

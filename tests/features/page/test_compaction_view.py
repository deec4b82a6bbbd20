"""The verdict on a compaction, and the lines of its summary beside their messages."""

from __future__ import annotations

import json

from accordion.features.page.compaction_view import judge
from accordion.features.page.views import view_blocks
from accordion.model.budget import Utilization
from accordion.model.compaction import Compaction, CompactionEntry, StrategyRecord
from accordion.model.conversation import Message, Text, ToolCall, ToolResult
from accordion.pipeline.sent_history import ComparedBlock
from accordion.summaries.instructions import TITLE
from tests.http.exchanges import exchange

RECORD = f"[Record]\n\n## {TITLE}\n[1] Use tabs.\n[2] Ask first.\n\n## Files\nread [3-4]"
SUMMARY = json.dumps({"role": "user", "content": RECORD}).encode()
REFERENCE = json.dumps({"role": "tool", "content": "[art_000000000001]"}).encode()
MADE = exchange(messages=10, utilization=Utilization(1_000, preamble=50, tools=100, messages=350))


def user(text: str) -> Message:
    return Message(b"", "user", (Text(text),), b"")


def assistant(part: Text | ToolCall) -> Message:
    return Message(b"", "assistant", (part,), b"")


def result(call_id: str) -> Message:
    return Message(b"", "tool", (ToolResult(call_id, (Text("text"),)),), b"")


CALLS = [(assistant(ToolCall(call_id, "read", "{}")), result(call_id)) for call_id in ("c-1", "c-2")]
MESSAGES = [
    user("Look at it."), user("Use tabs."), *CALLS[0], user("Go on."), *CALLS[1], user("Now this."),
    assistant(Text("Yes.")), assistant(Text("Done.")),
]  # fmt: skip


def compaction(*steps: StrategyRecord) -> Compaction:
    entries = (
        CompactionEntry(0, 0),
        CompactionEntry(1, 4, SUMMARY),
        CompactionEntry(5, 5),
        CompactionEntry(6, 6, REFERENCE, is_edited=True),
    )
    return Compaction("f-1", b"", 7, entries, "conversation", "automatic", 0.9, steps, 900, 500, 1, 1.0)


STEPS = (
    StrategyRecord("stale_reasoning", 900, 850),
    StrategyRecord("compact_tool_results", 850, 700),
    StrategyRecord("summarize", 700, 500),
)


def test_the_parts_of_both_bars_add_up_to_the_tokens_before_and_after() -> None:
    verdict = judge(compaction(*STEPS), MADE, MESSAGES, frozenset())
    parts = {part.kind: (part.before, part.after) for part in verdict.parts}
    assert sum(before for before, _ in parts.values()) == 900
    assert sum(after for _, after in parts.values()) == 500
    assert parts["system"] == (150, 150)
    assert parts["reasoning"] == (50, 0)
    assert parts["results"] == (150 + len(REFERENCE) // 4, len(REFERENCE) // 4)
    assert parts["summary"] == (200 + len(SUMMARY) // 4, len(SUMMARY) // 4)
    assert parts["kept"][0] == parts["kept"][1]
    assert (verdict.window, verdict.scale) == (1_000, 1_000)


def test_without_the_exchange_the_window_is_known_by_its_share() -> None:
    verdict = judge(compaction(StrategyRecord("keep_last_n_turns", 900, 500)), None, (), frozenset())
    assert verdict.window == 1_000
    assert {part.kind for part in verdict.parts} == {"system", "kept", "summary", "results", "removed"}
    assert sum(part.before for part in verdict.parts) == 900


def test_a_request_larger_than_its_window_sets_the_scale_of_both_bars() -> None:
    small = exchange(messages=10, utilization=Utilization(600, preamble=50, messages=450))
    verdict = judge(compaction(*STEPS), small, MESSAGES, frozenset())
    assert (verdict.window, verdict.scale) == (600, 900)
    assert 'class="bar-window" x1="66.67%"' in verdict.bar(is_after=False)


def test_what_stays_is_named_with_its_rule() -> None:
    verdict = judge(compaction(*STEPS), MADE, MESSAGES, frozenset({"c-2"}))
    assert [(each.first, each.last, each.what) for each in verdict.ranges] == [
        (0, 0, "the opening request"),
        (5, 5, "a pinned result"),
        (7, 7, "the task"),
        (8, 9, "the newest messages"),
    ]
    assert verdict.kept == (
        "the opening request, the task, 2 standing instructions, 1 pinned message, the newest 2 messages"
    )


def test_each_line_of_a_summary_has_the_messages_that_it_cites() -> None:
    client = tuple(enumerate(MESSAGES))[1:7]
    (block,) = view_blocks([ComparedBlock("summary", 1, 6, client, (user(RECORD + "\nagain [1]"),))], [])
    cited = [(line.text, [view.index for view in line.sources], line.earlier) for line in block.lines]
    assert cited == [
        ("[Record]", [], ()),
        (f"## {TITLE}", [], ()),
        ("[1] Use tabs.", [1], ()),
        ("[2] Ask first.", [2], ()),
        ("## Files", [], ()),
        ("read [3-4]", [3, 4], ()),
        ("again [1]", [], (1,)),
    ]
    assert [view.index for view in block.uncited] == [5, 6]

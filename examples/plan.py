"""What the scripted agent of `record.py` does: its instructions, its tools, and the plan that it follows."""

from __future__ import annotations

from typing import Any

Step = tuple[str, list[tuple[str, dict[str, str]]]]
"""What the assistant says, and its calls: names of tools with their arguments."""

SYSTEM = """You are a careful engineer who explains a code base to its next maintainer.

Work in small steps: look before you claim anything, and read a definition rather than a whole file where that is
enough. Independent look-ups go into one step. Never edit a file. When you are done, answer in a few sentences: name
the files and functions that matter, give figures as they stand in the code, and say what you did not check.
All paths are relative to the root of the repository."""


def _tool(name: str, description: str, /, **parameters: str) -> dict[str, Any]:
    properties = {key: {"type": "string", "description": said} for key, said in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(parameters), "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


TOOLS = [
    _tool("list_files", "List the files below a folder, each with its number of lines.", folder="A folder"),
    _tool("read_file", "Read a whole text file.", path="A file"),
    _tool(
        "read_definition",
        "Read one function, class or method of a Python module.",
        path="A Python file",
        name="Its name, with dots for what is inside a class: `Sessions.resolve`",
    ),
    _tool(
        "search",
        "Find every line of the Python files below a folder that matches a regular expression.",
        pattern="A regular expression in Python's syntax",
        folder="A folder",
    ),
    _tool("run_tests", "Run the tests of one file and show how each went.", path="A file below tests/"),
    _tool("check_imports", "Check that every module imports only from packages below its own."),
]

_MEASURE = "proxy/accordion/pipeline/measure.py"
_POLICY = "proxy/accordion/compaction/policy.py"
_METER = "proxy/accordion/accounting/token_meter.py"
_SESSIONS = "proxy/accordion/sessions/sessions.py"
_WINDOWS = "proxy/accordion/providers/models/windows.py"

TURNS: list[tuple[str, list[Step], str]] = [
    (
        "I am new here. How does this proxy decide how full a model's window is, and when that is too full? Show me "
        "the rule itself and where it is applied.",
        [
            ("I start with the values that the core knows.", [("list_files", {"folder": "proxy/accordion/model"})]),
            ("", [("read_file", {"path": "proxy/accordion/model/budget.py"})]),
            ("Now who calls the rule.", [("search", {"pattern": r"\bdecide\(|\.limits\(", "folder": "proxy"})]),
            ("", [("read_definition", {"path": _POLICY, "name": "_decide_by_trigger"})]),
            (
                "",
                [
                    ("read_definition", {"path": _MEASURE, "name": "Measurer.decide"}),
                    ("read_definition", {"path": "proxy/accordion/pipeline/request.py", "name": "MeasuredRequest"}),
                ],
            ),
        ],
        "The rule is `decide` in proxy/accordion/compaction/policy.py. It compares what is occupied (everything "
        "that would be "
        "sent, and the room reserved for the answer) with limits in tokens that `Thresholds.limits` of "
        "proxy/accordion/model/budget.py derives from the window's size: a conversation trigger at half of the "
        "window for the "
        "beginning of a turn, a generation trigger for everything else, and a hard limit. The last two depend on the "
        "size: 85 % less a buffer of 10 for windows below 100,000 tokens, 90 less 7 below 500,000, 95 less 4 above. "
        "`_decide_by_trigger` compares, and a trigger is inclusive. It is applied once for each request, in "
        "`Measurer.decide` of proxy/accordion/pipeline/measure.py. I did not look at where the counts come from.",
    ),
    (
        "Do the tests cover both sides of each limit? Run them, please.",
        [
            ("", [("list_files", {"folder": "tests/model"}), ("read_file", {"path": "tests/model/test_budget.py"})]),
            ("", [("search", {"pattern": r"trigger - 1|hard - 1", "folder": "tests/compaction"})]),
            ("", [("run_tests", {"path": "tests/compaction/test_policy.py"})]),
        ],
        "Yes: tests/compaction/test_policy.py decides one token below and exactly at a trigger, for both kinds of "
        "request, and likewise at the hard limit, which also shows that limits are inclusive. The limits themselves "
        "are tested in tests/model/test_budget.py at the borders between the three sizes of windows. The run is above.",
    ),
    (
        "And where do the counts come from? What happens when a count is wrong?",
        [
            ("Counting first.", [("read_definition", {"path": _METER, "name": "TokenMeter"})]),
            (
                "Then what corrects it.",
                [
                    ("read_file", {"path": "proxy/accordion/accounting/calibration.py"}),
                    (
                        "read_definition",
                        {"path": "proxy/accordion/pipeline/count.py", "name": "ForwardedListMeter._correct_count"},
                    ),
                    (
                        "read_definition",
                        {"path": "proxy/accordion/pipeline/calibration.py", "name": "Calibrator.learn"},
                    ),
                ],
            ),
            ("", [("read_file", {"path": "tests/accounting/test_calibration.py"})]),
            ("", [("run_tests", {"path": "tests/accounting/test_calibration.py"})]),
            ("", [("search", {"pattern": r"calibrations|Calibrations", "folder": "proxy"})]),
            (
                "The encodings behind the counts:",
                [("read_file", {"path": "proxy/accordion/providers/models/tokenizer.py"})],
            ),
        ],
        "`TokenMeter.measure` in proxy/accordion/accounting/token_meter.py counts with the model's own encoding "
        "(proxy/accordion/providers/models/tokenizer.py), adds fixed overheads for messages, calls and tools, and "
        "keeps the sum up to each "
        "message under its chain key, so that only new messages are counted. A wrong count is corrected in two ways "
        "(proxy/accordion/accounting/calibration.py): where the provider reported usage for the beginning of this "
        "very list, "
        "that figure is carried forward and only what is new is estimated; else the count is multiplied by how far "
        "earlier counts of the same session or model were off. Single odd reports are held to a factor of 1.5, all "
        "of them to between 0.5 and 3.",
    ),
    (
        "How does it know that two requests belong to the same session? Nothing in the protocol says so.",
        [
            ("", [("list_files", {"folder": "proxy/accordion/sessions"})]),
            ("", [("read_definition", {"path": _SESSIONS, "name": "Sessions.resolve"})]),
            (
                "",
                [
                    ("read_definition", {"path": _SESSIONS, "name": "Sessions._choose_session"}),
                    ("read_definition", {"path": "proxy/accordion/sessions/prefix_nodes.py", "name": "PrefixNode"}),
                    ("read_definition", {"path": _SESSIONS, "name": "SessionMatch"}),
                ],
            ),
            (
                "The chain keys come from the protocols.",
                [("search", {"pattern": "def .*key", "folder": "proxy/accordion/protocols"})],
            ),
            ("", [("read_definition", {"path": "proxy/accordion/protocols/message_keys.py", "name": "chain_key"})]),
            (
                "",
                [
                    (
                        "read_definition",
                        {"path": "proxy/accordion/protocols/body_reader.py", "name": "BodyReader._extend_prefix"},
                    )
                ],
            ),
            (
                "And what clients say of themselves.",
                [("read_file", {"path": "proxy/accordion/sessions/client_metadata.py"})],
            ),
            ("", [("run_tests", {"path": "tests/sessions/test_sessions.py"})]),
        ],
        "By content. Each message has a key, and the chain key of a message hashes everything up to it "
        "(proxy/accordion/protocols/message_keys.py). `Sessions.resolve` looks for the deepest place on the request's "
        "chain where an "
        "earlier request ended; that place names the session. Where the conversation had already gone on from there "
        "in another way, `Sessions._choose_session` makes it a fork with a session of its own. What clients say of "
        "themselves (proxy/accordion/sessions/client_metadata.py) only labels and divides; it never joins two "
        "histories that differ.",
    ),
    (
        "Where does the window's size come from for a model that nobody configured? Check the import rules too, and "
        "then sum up everything for a newcomer.",
        [
            ("", [("read_file", {"path": _WINDOWS})]),
            ("", [("run_tests", {"path": "tests/providers/models/test_windows.py"})]),
            ("", [("check_imports", {})]),
        ],
        "The size comes from LiteLLM's table, read without importing LiteLLM, after the config and after limits "
        "learnt from overflow errors; a model that is in none of them gets a default that is flagged as unknown "
        "(proxy/accordion/providers/models/windows.py). The import rules hold. In short: a request is read by its "
        "protocol, its session "
        "is found by content, the meter counts what is new, calibration corrects the count by what providers "
        "report, the window gives the limits, and `decide` says on which side of them the request is. All of that "
        "is brought together in proxy/accordion/pipeline/measure.py, which is where I would start to read.",
    ),
    (
        "One more: are pictures counted, or only text?",
        [
            ("", [("search", {"pattern": "media_rules|class MediaRules", "folder": "proxy"})]),
            ("", [("read_file", {"path": "proxy/accordion/accounting/media_tokens.py"})]),
            ("", [("search", {"pattern": "^def test_.*(image|picture)", "folder": "tests/accounting"})]),
        ],
        "They are counted by rules for each family of models: proxy/accordion/accounting/media_tokens.py has them, and "
        "the meter takes "
        "the rules of the model that is asked. The picture's own bytes are never counted as text. The search shows "
        "what its tests cover; I did not run them.",
    ),
]

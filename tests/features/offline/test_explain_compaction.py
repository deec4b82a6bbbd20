"""What `accordion explain` says of a request that would be compacted."""

import json
import re
from functools import cache
from typing import Any

import pytest

from tests.features.offline.test_explain import _elsewhere, explain, explain_json, lines_of, write_config
from tests.writers import LISTS, WRITERS, MadeCall

__all__ = ["_elsewhere"]

Json = dict[str, Any]
WINDOW = ("--window", "5000")
MODELS = {"chat": "some-model", "messages": "some-claude", "responses": "some-model"}
ALL = pytest.mark.parametrize("protocol_name", MODELS)


def search_result(turn: int) -> str:
    return "\n".join(f"src/mod{turn}.py:{line}: def function_{turn}_{line}(value): return value" for line in range(40))


def request(protocol_name: str, **fields: Any) -> Json:
    """A request of six turns, each with a long result."""
    writer, entries = WRITERS[protocol_name], list[Json]()
    for turn in range(6):
        call = MadeCall(f"c{turn}", "read", {"n": turn}, search_result(turn))
        entries += [writer.user(f"question {turn}"), *writer.calls(call), *writer.results(call)]
        entries.append(writer.model(f"answer {turn}"))
    entries.append(writer.user("And now?"))
    fields = {"model": MODELS[protocol_name], "temperature": 0} | fields
    return writer.with_system(writer.request(entries=entries, **fields), "Be brief.")


CHAT = request("chat")


@cache
def explained(protocol_name: str, *arguments: str) -> Json:
    """What is said of the request as JSON, in a small window."""
    return explain_json(request(protocol_name), *WINDOW, *arguments)


def name_of(tool: Json) -> str:
    name: str = tool.get("function", tool)["name"]
    return name


@ALL
def test_a_compaction_is_told_with_its_kind_trigger_target_and_steps(protocol_name: str) -> None:
    told = explained(protocol_name)
    compaction = told["compaction"]
    assert (told["action"], compaction["state"], compaction["kind"]) == ("compact", "compacted", "conversation")
    assert compaction["trigger"] == 2_500
    assert compaction["before"] == told["counted"]["tokens"] >= compaction["trigger"]
    assert compaction["after"] < compaction["before"]
    assert compaction["steps"][0]["before"] == compaction["before"]
    assert compaction["steps"][-1]["after"] == pytest.approx(compaction["after"], rel=0.02)
    assert (compaction["generation"], compaction["writer"], compaction["live_writer"]) == (1, "extractive", "request")


def test_a_writer_that_the_pipeline_names_is_told_and_not_asked() -> None:
    own = write_config("compaction: {models: {some-model: {pipeline: [{summarize: {model: gpt-4o}}]}}}\n")
    compaction = explain_json(CHAT, *WINDOW, *own)["compaction"]
    writers = (compaction["writer"], compaction["live_writer"])
    assert (compaction["state"], *writers) == ("compacted", "extractive", "gpt-4o")


@ALL
def test_both_lists_stand_side_by_side_and_account_for_every_token(protocol_name: str) -> None:
    compaction, came = explained(protocol_name)["compaction"], request(protocol_name)[LISTS[protocol_name]]
    listed, blocks = compaction["listed"], compaction["blocks"]
    head = len(came) - len(listed)
    assert [row["index"] for row in listed] == list(range(head, len(came)))
    assert [row["number"] for row in listed] == list(range(len(listed)))
    gone = [row for row in listed if row["became"] == "block"]
    assert gone
    for row in gone:
        block = blocks[row["block"] - 1]
        assert block["first"] <= row["number"] <= block["last"]
    assert listed[-1]["became"] == "kept"
    kept = [row for row in listed if row["became"] == "kept"]
    assert all(row["tokens"] == row["after"] for row in kept)
    less = sum(row["tokens"] - row["after"] for row in listed) - sum(block["tokens"] for block in blocks)
    assert compaction["before"] - compaction["after"] == pytest.approx(less - compaction["offered"]["tokens"], abs=5)


@pytest.mark.parametrize(
    ("protocol_name", "own", "model"),
    [
        ("chat", "", "gpt-4o"),
        ("chat", "read_artifact", "gpt-4o"),
        ("responses", "read", "gpt-4o"),
        ("messages", "", "claude-sonnet-4-5"),
        ("messages", "read", "claude-sonnet-4-5"),
    ],
)
def test_the_tool_that_a_compaction_brings_along_is_told_with_its_name_and_tokens(
    protocol_name: str, own: str, model: str
) -> None:
    body = request(protocol_name, model=model)
    if own:
        writer = WRITERS[protocol_name]
        body = writer.with_tools(body, [writer.tool(own, "Reads a file.", {"type": "object"})])
    compaction = explain_json(body, *WINDOW, "--full")["compaction"]
    leaving = json.loads(compaction["body"])
    said = "accordion_read_artifact" if own == "read_artifact" else "read_artifact"
    assert compaction["offered"]["name"] == said
    assert [name_of(each) for each in leaving["tools"]] == [*filter(None, [own]), said]
    # As much as the very request counts more than one without it; Claude's first tool brings a system prompt along.
    without = leaving | {"tools": body["tools"]} if own else {k: v for k, v in leaving.items() if k != "tools"}
    (after, tools), (_, rest) = (
        (found["tokens"], found["parts"]["tools"])
        for found in (explain_json(each)["counted"] for each in (leaving, without))
    )
    assert compaction["offered"]["tokens"] == tools - rest > 0
    # A block that became a part of the message beside it is no message of its own any more.
    assert compaction["steps"][-1]["after"] == compaction["after"] == pytest.approx(after, abs=5)
    text = lines_of(explain(body, *WINDOW))
    assert text["tool added"].startswith(f"{said}, in each request from now on")
    assert text["tool added"].endswith(f": {compaction['offered']['tokens']:,} tokens")
    assert f"compacted; the tool {said} is added as the last one; everything else" in text["body"]


def test_without_an_offered_tool_none_is_reported() -> None:
    switched_off = explain_json(CHAT, *WINDOW, *write_config("read_back: {tool: false}\n"))
    assert (switched_off["compaction"]["state"], switched_off["compaction"]["offered"]) == ("compacted", None)
    assert "the tool" not in switched_off["changed"]["body"]
    several = explain_json(CHAT | {"n": 2}, *WINDOW)["compaction"]
    assert (several["state"], several["offered"]) == ("compacted", None)


@ALL
def test_the_whole_body_is_told_where_asked_and_is_what_would_leave(protocol_name: str) -> None:
    assert explained(protocol_name)["compaction"]["body"] == ""
    compaction = explained(protocol_name, "--full")["compaction"]
    came, leaving, name = request(protocol_name), json.loads(compaction["body"]), LISTS[protocol_name]
    assert {field for field in leaving if leaving[field] == came.get(field)} == came.keys() - {name}
    assert compaction["messages"] == [len(came[name]), len(leaving[name])]
    assert compaction["bytes"][1] == len(compaction["body"].encode())
    # As JSON has it: quotation marks are escaped there.
    assert all(json.dumps(block["text"])[1:-1] in compaction["body"] for block in compaction["blocks"])
    assert leaving[name][-1] == came[name][-1]


@ALL
def test_archived_content_is_listed_with_id_and_size(protocol_name: str) -> None:
    compaction = explained(protocol_name)["compaction"]
    named = set(re.findall(r"art_[0-9a-f]{12}", json.dumps([block["text"] for block in compaction["blocks"]])))
    assert named <= {artifact["id"] for artifact in compaction["artifacts"]}
    results = [artifact for artifact in compaction["artifacts"] if artifact["kind"] == "result"]
    assert {artifact["tool"] for artifact in results} == {"read"}
    assert all(artifact["characters"] == len(search_result(0)) and artifact["tokens"] > 0 for artifact in results)


@ALL
def test_the_text_says_what_the_json_says(protocol_name: str) -> None:
    compaction, result = explained(protocol_name)["compaction"], explain(request(protocol_name), *WINDOW)
    text, out = lines_of(result), " ".join(result.stdout.split())
    assert (text["compacted"], text["reason"], text["trigger"]) == ("yes", compaction["why"], "2,500 tokens")
    assert text["tokens"].startswith(f"{compaction['before']:,} to {compaction['after']:,}, ")
    step = compaction["steps"][0]
    assert text["steps"] == f"{step['strategy']}: {step['before']:,} to {step['after']:,}"
    (block,) = compaction["blocks"]
    assert f"block 1, {block['tokens']:,} tokens" in out
    assert " ".join(block["text"].split()) in out
    assert re.search(rf"\[{block['first']}-{block['last']}\] .* block 1 +{block['tokens']:,}", result.stdout)
    for artifact in compaction["artifacts"][:3]:
        assert artifact["id"] in out
    assert ("leave out the system prompt" in out) is (compaction["listed"][0]["index"] > 0)


@ALL
def test_an_edited_result_is_told_with_what_stands_there_now(protocol_name: str) -> None:
    pipeline = "[{compact_tool_results: {keep_last_n: 1, replacement: reference}}]"
    given = write_config(f"compaction: {{pipeline: {pipeline}}}\n")
    compaction = explain_json(request(protocol_name), *WINDOW, *given)["compaction"]
    edited = [row for row in compaction["listed"] if row["became"] == "edited"]
    assert len(edited) == 5
    for row, artifact in zip(edited, compaction["artifacts"], strict=True):
        assert artifact["id"] in row["text"]
        assert row["after"] < row["tokens"]
    out = explain(request(protocol_name), *WINDOW, *given).stdout
    assert out.count("edited: [Result of read(") == 5


def test_dropped_messages_are_listed_as_left_out() -> None:
    given = write_config("compaction: {pipeline: [{compact_tool_results: {keep_last_n: 1, replacement: drop}}]}\n")
    compaction = explain_json(CHAT, *WINDOW, *given)["compaction"]
    assert [row["role"] for row in compaction["listed"] if row["became"] == "left out"] == ["assistant", "tool"] * 5
    assert re.search(r"\[1-2\] .* removed *$", explain(CHAT, *WINDOW, *given).stdout, re.MULTILINE)


def test_a_request_that_needs_no_compaction_says_so_and_why() -> None:
    told, result = explain_json(CHAT), explain(CHAT)
    compaction, text = told["compaction"], lines_of(result)
    assert (compaction["state"], compaction["listed"], compaction["offered"]) == ("none", [], None)
    assert "under the conversation trigger" in compaction["why"]
    assert (text["compacted"], text["reason"]) == ("no", told["reason"])
    assert "tool added" not in text
    assert "before and after" not in result.stdout


def test_a_request_near_its_trigger_says_that_a_summary_is_prepared() -> None:
    tokens = explained("chat")["counted"]["tokens"]
    told = explain_json(CHAT, "--window", str(round(tokens / 0.45)))
    assert (told["action"], told["compaction"]["state"]) == ("prepare", "none")
    assert "a summary is being prepared" in told["compaction"]["why"]


def test_a_header_compacts_whatever_the_size_or_not_at_all_or_only_tells() -> None:
    now = explain_json(CHAT, "-H", "x-accordion-compact: now")["compaction"]
    assert (now["state"], now["forced"]) == ("compacted", True)
    off = explained("chat", "-H", "x-accordion-compact: off")
    assert (off["compaction"]["state"], off["changed"]["body"]) == ("none", "unchanged, byte for byte")
    assert "compaction is off" in off["compaction"]["why"]
    observed = explained("chat", "-H", "x-accordion-compact: observe")
    compaction = observed["compaction"]
    assert compaction["state"] == "observed"
    assert compaction["after"] == compaction["steps"][-1]["after"] < compaction["before"]
    assert observed["changed"]["body"] == "unchanged, byte for byte"
    text = lines_of(explain(CHAT, *WINDOW, "-H", "x-accordion-compact: observe"))
    assert text["compacted"] == "no, it is only reported"
    assert text["tokens"].endswith("less (planned)")
    assert compaction["offered"] == explained("chat")["compaction"]["offered"]
    tokens = compaction["offered"]["tokens"]
    assert text["tool added"] == f"read_artifact, only reported, to read the archive: {tokens:,} tokens"


def test_provider_history_is_not_compacted() -> None:
    told = explain_json(request("responses", previous_response_id="resp_1"), *WINDOW)["compaction"]
    assert told["state"] == "none"
    assert "the history that the provider keeps is not completely on record" in told["why"]


def test_a_request_that_fits_in_no_form_is_refused_with_its_figures() -> None:
    told = explain_json(CHAT, "--window", "40", "--full")
    assert (told["action"], told["changed"]["body"]) == ("refuse", "nothing is sent")
    assert told["compaction"]["refused"] == told["changed"]["refused"] == told["reason"]
    assert "40 of the window" in told["reason"]
    assert told["counted"]["tokens"] > told["compaction"]["after"] > 40
    assert told["compaction"]["body"] == ""
    assert lines_of(explain(CHAT, "--window", "40"))["refused"] == told["reason"]


def test_a_request_that_was_not_read_is_not_compacted() -> None:
    told = explain_json(b'{"messages":', *WINDOW)
    assert (told["compaction"]["state"], told["compaction"]["why"]) == ("none", "it was not parsed")


def test_the_change_of_a_body_says_that_it_was_compacted_and_renamed() -> None:
    given = write_config("model_list: [{model_name: some-model, litellm_params: {model: openai/gpt-4o}}]\n")
    changed = explain_json(CHAT, *WINDOW, *given)["changed"]["body"]
    assert changed.startswith("the message list is compacted; ")
    assert changed.endswith("the model name 'some-model' becomes 'gpt-4o'; everything else is unchanged")
    given = write_config("model_list: [{model_name: some-model, litellm_params: {model: gemini/gemini-2.5-pro}}]\n")
    assert explain_json(CHAT, *WINDOW, *given)["changed"]["body"].startswith("compacted, then translated")


def test_no_credential_is_shown_in_a_body_or_block() -> None:
    shown = explain(CHAT, *WINDOW, "--full", "-H", "authorization: Bearer sk-secret")
    assert "sk-secret" not in shown.output

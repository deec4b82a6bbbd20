import json
import re
from typing import Any

import pytest

from tests.features.offline.test_explain import _elsewhere, explain, explain_json, lines_of, write_config

__all__ = ["_elsewhere"]

WINDOW = ("--window", "5000")
ONLY_RESULTS = "compaction: {pipeline: [{compact_tool_results: {keep_last_n: 1, replacement: reference}}]}\n"


def search_result(turn: int) -> str:
    return "\n".join(f"src/mod{turn}.py:{line}: def function_{turn}_{line}(value): return value" for line in range(40))


def chat() -> dict[str, Any]:
    messages: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}]
    for turn in range(6):
        call = {"id": f"c{turn}", "type": "function", "function": {"name": "read", "arguments": f'{{"n":{turn}}}'}}
        messages += [
            {"role": "user", "content": f"question {turn}"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{turn}", "content": search_result(turn)},
            {"role": "assistant", "content": f"answer {turn}"},
        ]
    return {"model": "some-model", "temperature": 0, "messages": [*messages, {"role": "user", "content": "And now?"}]}


def messages() -> dict[str, Any]:
    turns: list[dict[str, Any]] = []
    for turn in range(6):
        call = {"type": "tool_use", "id": f"t{turn}", "name": "read", "input": {"n": turn}}
        turns += [
            {"role": "user", "content": f"question {turn}"},
            {"role": "assistant", "content": [call]},
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": f"t{turn}", "content": search_result(turn)}],
            },
            {"role": "assistant", "content": f"answer {turn}"},
        ]
    turns.append({"role": "user", "content": "And now?"})
    return {"model": "some-claude", "max_tokens": 100, "system": "Be brief.", "messages": turns}


def responses() -> dict[str, Any]:
    items: list[dict[str, Any]] = []
    for turn in range(6):
        items += [
            {"type": "message", "role": "user", "content": f"question {turn}"},
            {"type": "function_call", "call_id": f"c{turn}", "name": "read", "arguments": f'{{"n":{turn}}}'},
            {"type": "function_call_output", "call_id": f"c{turn}", "output": search_result(turn)},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": f"answer {turn}"}]},
        ]
    items.append({"type": "message", "role": "user", "content": "And now?"})
    return {"model": "some-model", "instructions": "Be brief.", "input": items}


ALL = pytest.mark.parametrize("body", [chat(), messages(), responses()], ids=["chat", "messages", "responses"])


def tool(body: dict[str, Any], name: str) -> dict[str, Any]:
    """A tool as the protocol of a request has it."""
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    if "system" in body:
        return {"name": name, "input_schema": schema}
    if "input" in body:
        return {"type": "function", "name": name, "parameters": schema}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


def name_of(tool: dict[str, Any]) -> str:
    name: str = tool.get("function", tool)["name"]
    return name


def listing(body: dict[str, Any]) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = body["input" if "input" in body else "messages"]
    return listed


@ALL
def test_a_compaction_is_told_with_its_kind_trigger_target_and_steps(body: dict[str, Any]) -> None:
    told = explain_json(body, *WINDOW)
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
    compaction = explain_json(chat(), *WINDOW, *own)["compaction"]
    assert (compaction["state"], compaction["writer"], compaction["live_writer"]) == (
        "compacted",
        "extractive",
        "gpt-4o",
    )


@ALL
def test_both_lists_stand_side_by_side_and_account_for_every_token(body: dict[str, Any]) -> None:
    told = explain_json(body, *WINDOW)
    compaction, listed, blocks = told["compaction"], told["compaction"]["listed"], told["compaction"]["blocks"]
    head = len(listing(body)) - len(listed)
    assert [row["index"] for row in listed] == list(range(head, len(listing(body))))
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


@ALL
@pytest.mark.parametrize("own", ["no", "one", "ours"])
@pytest.mark.parametrize("model", ["gpt-4o", "claude-sonnet-4-5"])
def test_the_tool_that_a_compaction_brings_along_is_told_with_its_name_and_tokens(
    body: dict[str, Any], own: str, model: str
) -> None:
    name = {"no": "", "one": "read", "ours": "read_artifact"}[own]
    body = body | {"model": model} | ({"tools": [tool(body, name)]} if name else {})
    compaction = explain_json(body, *WINDOW, "--full")["compaction"]
    leaving = json.loads(compaction["body"])
    said = "accordion_read_artifact" if own == "ours" else "read_artifact"
    assert compaction["offered"]["name"] == said
    assert [name_of(each) for each in leaving["tools"]] == [*filter(None, [name]), said]
    # As much as the very request counts more than one without it; Claude's first tool brings a system prompt along.
    without = leaving | {"tools": body["tools"]} if name else {k: v for k, v in leaving.items() if k != "tools"}
    counts = [explain_json(each)["counted"]["parts"]["tools"] for each in (leaving, without)]
    assert compaction["offered"]["tokens"] == counts[0] - counts[1] > 0
    text = lines_of(explain(body, *WINDOW))
    assert text["tool added"].startswith(f"{said}, in each request from now on")
    assert text["tool added"].endswith(f": {compaction['offered']['tokens']:,} tokens")
    assert f"compacted; the tool {said} is added as the last one; everything else" in text["body"]


@ALL
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("model", ["some-model", "gpt-4o", "claude-sonnet-4-5"])
def test_the_record_of_a_compaction_says_what_the_request_counts_afterwards(
    body: dict[str, Any], own: bool, model: str
) -> None:
    body = body | {"model": model} | ({"tools": [tool(body, "read")]} if own else {})
    compaction = explain_json(body, *WINDOW, "--full")["compaction"]
    counted = explain_json(compaction["body"].encode())["counted"]["tokens"]
    # A block that became a part of the message beside it is no message of its own any more.
    assert compaction["steps"][-1]["after"] == compaction["after"] == pytest.approx(counted, abs=5)


def test_without_an_offered_tool_none_is_reported() -> None:
    switched_off = explain_json(chat(), *WINDOW, *write_config("read_back: {tool: false}\n"))
    assert (switched_off["compaction"]["state"], switched_off["compaction"]["offered"]) == ("compacted", None)
    assert "the tool" not in switched_off["changed"]["body"]
    several = explain_json(chat() | {"n": 2}, *WINDOW)["compaction"]
    assert (several["state"], several["offered"]) == ("compacted", None)
    assert explain_json(chat())["compaction"]["offered"] is None
    assert "tool added" not in lines_of(explain(chat()))


@ALL
def test_the_whole_body_is_told_where_asked_and_is_what_would_leave(body: dict[str, Any]) -> None:
    assert explain_json(body, *WINDOW)["compaction"]["body"] == ""
    compaction = explain_json(body, *WINDOW, "--full")["compaction"]
    leaving = json.loads(compaction["body"])
    assert {name: leaving[name] for name in leaving if leaving[name] == body.get(name)}.keys() == body.keys() - {
        "input" if "input" in body else "messages"
    }
    assert compaction["messages"] == [len(listing(body)), len(listing(leaving))]
    assert compaction["bytes"][1] == len(compaction["body"].encode())
    # As JSON has it: quotation marks are escaped there.
    assert all(json.dumps(block["text"])[1:-1] in compaction["body"] for block in compaction["blocks"])
    assert listing(leaving)[-1] == listing(body)[-1]


@ALL
def test_archived_content_is_listed_with_id_and_size(body: dict[str, Any]) -> None:
    compaction = explain_json(body, *WINDOW)["compaction"]
    named = set(re.findall(r"art_[0-9a-f]{12}", json.dumps([block["text"] for block in compaction["blocks"]])))
    assert named <= {artifact["id"] for artifact in compaction["artifacts"]}
    results = [artifact for artifact in compaction["artifacts"] if artifact["kind"] == "result"]
    assert {artifact["tool"] for artifact in results} == {"read"}
    assert all(artifact["characters"] == len(search_result(0)) and artifact["tokens"] > 0 for artifact in results)


@ALL
def test_the_text_says_what_the_json_says(body: dict[str, Any]) -> None:
    compaction, result = explain_json(body, *WINDOW)["compaction"], explain(body, *WINDOW)
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
def test_an_edited_result_is_told_with_what_stands_there_now(body: dict[str, Any]) -> None:
    given = write_config(ONLY_RESULTS)
    compaction = explain_json(body, *WINDOW, *given)["compaction"]
    edited = [row for row in compaction["listed"] if row["became"] == "edited"]
    assert len(edited) == 5
    for row, artifact in zip(edited, compaction["artifacts"], strict=True):
        assert artifact["id"] in row["text"]
        assert row["after"] < row["tokens"]
    out = explain(body, *WINDOW, *given).stdout
    assert out.count("edited: [Result of read(") == 5


def test_dropped_messages_are_listed_as_left_out() -> None:
    given = write_config("compaction: {pipeline: [{compact_tool_results: {keep_last_n: 1, replacement: drop}}]}\n")
    compaction = explain_json(chat(), *WINDOW, *given)["compaction"]
    assert [row["role"] for row in compaction["listed"] if row["became"] == "left out"] == ["assistant", "tool"] * 5
    assert re.search(r"\[1-2\] .* removed *$", explain(chat(), *WINDOW, *given).stdout, re.MULTILINE)


@ALL
def test_a_request_that_needs_no_compaction_says_so_and_why(body: dict[str, Any]) -> None:
    told = explain_json(body)
    assert told["compaction"]["state"] == "none"
    assert "under the conversation trigger" in told["compaction"]["why"]
    assert told["compaction"]["listed"] == []
    text = lines_of(explain(body))
    assert (text["compacted"], text["reason"]) == ("no", told["reason"])
    assert "before and after" not in explain(body).stdout


def test_a_request_near_its_trigger_says_that_a_summary_is_prepared() -> None:
    tokens = explain_json(chat())["counted"]["tokens"]
    told = explain_json(chat(), "--window", str(round(tokens / 0.45)))
    assert (told["action"], told["compaction"]["state"]) == ("prepare", "none")
    assert "a summary is being prepared" in told["compaction"]["why"]


def test_a_header_compacts_whatever_the_size_or_not_at_all_or_only_tells() -> None:
    now = explain_json(chat(), "-H", "x-accordion-compact: now")["compaction"]
    assert (now["state"], now["forced"]) == ("compacted", True)
    off = explain_json(chat(), *WINDOW, "-H", "x-accordion-compact: off")
    assert (off["compaction"]["state"], off["changed"]["body"]) == ("none", "unchanged, byte for byte")
    assert "compaction is off" in off["compaction"]["why"]
    observed = explain_json(chat(), *WINDOW, "-H", "x-accordion-compact: observe")
    assert observed["compaction"]["state"] == "observed"
    assert (
        observed["compaction"]["after"]
        == observed["compaction"]["steps"][-1]["after"]
        < observed["compaction"]["before"]
    )
    assert observed["changed"]["body"] == "unchanged, byte for byte"
    text = lines_of(explain(chat(), *WINDOW, "-H", "x-accordion-compact: observe"))
    assert text["compacted"] == "no, it is only reported"
    assert text["tokens"].endswith("less (planned)")
    tool = observed["compaction"]["offered"]
    assert tool == explain_json(chat(), *WINDOW)["compaction"]["offered"]
    assert text["tool added"] == f"read_artifact, only reported, to read the archive: {tool['tokens']:,} tokens"


def test_provider_history_is_not_compacted() -> None:
    told = explain_json(responses() | {"previous_response_id": "resp_1"}, *WINDOW)["compaction"]
    assert (told["state"], "the history that the provider keeps is not completely on record" in told["why"]) == (
        "none",
        True,
    )


def test_a_request_that_fits_in_no_form_is_refused_with_its_figures() -> None:
    told = explain_json(chat(), "--window", "40")
    assert (told["action"], told["changed"]["body"]) == ("refuse", "nothing is sent")
    assert told["compaction"]["refused"] == told["changed"]["refused"] == told["reason"]
    assert "40 of the window" in told["reason"]
    assert told["counted"]["tokens"] > told["compaction"]["after"] > 40
    text = lines_of(explain(chat(), "--window", "40"))
    assert text["refused"] == told["reason"]
    assert explain_json(chat(), "--window", "40", "--full")["compaction"]["body"] == ""


def test_a_request_that_was_not_read_is_not_compacted() -> None:
    told = explain_json(b'{"messages":', *WINDOW)
    assert (told["compaction"]["state"], told["compaction"]["why"]) == ("none", "it was not parsed")


def test_the_change_of_a_body_says_that_it_was_compacted_and_renamed() -> None:
    given = write_config("model_list: [{model_name: some-model, litellm_params: {model: openai/gpt-4o}}]\n")
    changed = explain_json(chat(), *WINDOW, *given)["changed"]["body"]
    assert changed.startswith("the message list is compacted; ")
    assert changed.endswith("the model name 'some-model' becomes 'gpt-4o'; everything else is unchanged")
    given = write_config("model_list: [{model_name: some-model, litellm_params: {model: gemini/gemini-2.5-pro}}]\n")
    assert explain_json(chat(), *WINDOW, *given)["changed"]["body"].startswith("compacted, then translated")


def test_no_credential_is_shown_in_a_body_or_block() -> None:
    shown = explain(chat(), *WINDOW, "--full", "-H", "authorization: Bearer sk-secret")
    assert "sk-secret" not in shown.output

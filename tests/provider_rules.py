"""The rules of providers for requests, and the content that a compaction must keep. Each returns problems as text."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tests import strict_provider
from tests.agent_replies import TOOLS, Json

if TYPE_CHECKING:
    from tests.strict_provider import StrictProvider

# What reasoning may stand before.
_LED = ("function_call", "message", "reasoning")
# By what an item tells which reply it is of: its seal, its call, its words.
_REPLY = re.compile(r"(?:^c2lnbmF0dXJl|^call_|^ours_|Step )(\d{6}(?=\d\d\+)|\d+)")
_MEMORY = re.compile(r"\[Session memory |\[Memories from this user's ")
_CALL = re.compile(r"call_\d+_\d+$")


def problems(protocol_name: str, body: Json, provider: StrictProvider) -> list[str]:
    """The problems of a request."""
    own = provider.tools or TOOLS[protocol_name]
    tools = declared_tools(body)
    if tools[: len(own)] != own or len(tools) > len(own) + 1:
        return ["the tools are not those of the client, with one more behind them at most"]
    entries = body[strict_provider.LISTS[protocol_name]]
    if not entries:
        return ["there are no messages"]
    try:
        return list(_RULES[protocol_name](body, entries, provider))
    except (KeyError, IndexError, TypeError, ValueError) as error:
        return [f"malformed: {error!r}"]


def declared_tools(body: Json) -> list[Json]:
    """The tools of a request: Gemini's are lists of functions, Bedrock's are in a field of their own."""
    # Converse has its tools in `toolConfig`, which is the choice of tools in Gemini.
    tools: list[Json] = body["tools"] if "tools" in body else body["toolConfig"]["tools"]
    return [each for tool in tools for each in tool.get("functionDeclarations", [tool])]


def _chat(body: Json, entries: list[Json], provider: StrictProvider) -> Iterator[str]:
    if entries[0] != {"role": "system", "content": strict_provider.SYSTEM}:
        yield "the system prompt is not the client's"
    wanted: list[str] = []
    for at, entry in enumerate(entries):
        if entry["role"] == "tool":
            if entry["tool_call_id"] not in wanted:
                yield f"messages with role 'tool' must be a response to a preceding message with 'tool_calls' ({at})"
            else:
                wanted.remove(entry["tool_call_id"])
            if not entry["content"]:
                yield f"an empty result ({at})"
            continue
        if wanted:
            yield f"tool_call_ids did not have response messages: {wanted} ({at})"
        wanted = [call["id"] for call in entry.get("tool_calls") or ()]
        for call in entry.get("tool_calls") or ():
            json.loads(call["function"]["arguments"])
        if entry["role"] not in ("system", "user", "assistant") or (not entry.get("content") and not wanted):
            yield f"an empty or odd message ({at}): {entry}"
    if wanted:
        yield f"calls without results at the end: {wanted}"
    yield from _check_task_is_there(
        [_texts(entry.get("content")) for entry in entries if entry["role"] == "user"], provider
    )
    results = {entry["tool_call_id"]: entry["content"] for entry in entries if entry["role"] == "tool"}
    if entries[-1]["role"] == "tool":
        last = max(at for at, entry in enumerate(entries) if entry["role"] == "assistant")
        yield from _newest([call["id"] for call in entries[last]["tool_calls"]], results, provider)
    else:
        yield from _newest_text(_texts(entries[-1]["content"]), provider)


def _messages(body: Json, entries: list[Json], provider: StrictProvider) -> Iterator[str]:
    system = body.get("system")
    if _texts(system) != [strict_provider.SYSTEM]:
        yield f"the system prompt is not the client's: {system}"
    marks = json.dumps(body).count('"cache_control"')
    if marks > 4:
        yield f"A maximum of 4 blocks with cache_control may be provided. Found {marks}."
    asked: list[str] = []
    for at, entry in enumerate(entries):
        if entry["role"] != ("user", "assistant")[at % 2]:
            yield f"messages.{at}: roles must alternate, beginning with user"
        blocks = (
            entry["content"] if isinstance(entry["content"], list) else [{"type": "text", "text": entry["content"]}]
        )
        if not blocks:
            yield f"messages.{at}: content is empty"
        found = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        if sorted(found) != sorted(asked):
            yield f"messages.{at}: `tool_use` ids {asked} are answered by `tool_result` blocks {found}"
        if any(block["type"] != "tool_result" for block in blocks[: len(found)]):
            yield f"messages.{at}: `tool_result` blocks must stand first"
        asked = [block["id"] for block in blocks if block["type"] == "tool_use"]
        yield from _blocks(at, blocks, provider)
        if provider.binds:
            yield from _bound(at, body, blocks, provider)
        # A thought that is bound to what is gone is to be removed, says the error.
        opens = provider.thinks and not provider.binds
        if asked and at >= len(entries) - 2 and opens and blocks[0]["type"] != "thinking":
            yield f"messages.{at}: an open tool turn must begin with its thinking block"
    if asked:
        yield f"calls without results at the end: {asked}"
    yield from _check_task_is_there(
        [_texts(entry["content"]) for entry in entries if entry["role"] == "user"], provider
    )
    last = entries[-1]["content"]
    results = (
        {b["tool_use_id"]: b.get("content") for b in last if b["type"] == "tool_result"}
        if isinstance(last, list)
        else {}
    )
    if results:
        calls = [block["id"] for block in entries[-2]["content"] if block["type"] == "tool_use"]
        yield from _newest(calls, {name: "".join(_texts(value)) for name, value in results.items()}, provider)
    else:
        yield from _newest_text(_texts(last), provider)


def _blocks(at: int, blocks: list[Json], provider: StrictProvider) -> Iterator[str]:
    for block in blocks:
        if block["type"] == "text" and not block["text"].strip():
            yield f"messages.{at}: text content blocks must be non-empty"
        if block["type"] == "thinking":
            if provider.thoughts.get(block["signature"]) != block["thinking"] or set(block) != {
                "type",
                "thinking",
                "signature",
            }:
                yield f"messages.{at}: `thinking` blocks cannot be modified"
        elif block["type"] == "tool_use" and not isinstance(block["input"], dict):
            yield f"messages.{at}: tool_use.input must be an object"


def _bound(at: int, body: Json, blocks: list[Json], provider: StrictProvider) -> Iterator[str]:
    """Newer models bind each thought to all that stood before it."""
    for block in blocks:
        if block["type"] == "thinking" and provider.bound.get(block["signature"]) != prefix(body, at):
            yield f"messages.{at}: Invalid `signature` in `thinking` block. It is bound to a different conversation."


def prefix(body: Json, end: int) -> str:
    """A digest of everything before an entry of the list, without cache breakpoints."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: plain(each) for name, each in value.items() if name != "cache_control"}
        return [plain(each) for each in value] if isinstance(value, list) else value

    listing = body.get("messages") or body.get("input") or body["contents"]
    text = json.dumps(plain([body.get("system"), declared_tools(body), listing[:end]]), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _responses(body: Json, entries: list[Json], provider: StrictProvider) -> Iterator[str]:
    if body.get("instructions") != strict_provider.SYSTEM:
        yield "the instructions are not the client's"
    wanted: list[str] = []
    reasoned: str | None = None
    led: int | None = None
    thoughtful = {int(found[1]) for sealed in provider.thoughts if (found := _REPLY.match(sealed))}
    for at, item in enumerate(entries):
        kind = item.get("type", "message")
        if kind == "function_call_output":
            if item["call_id"] not in wanted:
                yield f"No tool call found for function call output with call_id {item['call_id']} ({at})."
            else:
                wanted.remove(item["call_id"])
        elif kind == "function_call":
            json.loads(item["arguments"])
            wanted.append(item["call_id"])
            number = item["call_id"].split("_")[1]
            if (
                item.get("id")
                and int(number) in thoughtful
                and f"rs_{number}" not in {e.get("id") for e in entries[:at]}
            ):
                yield f"Item '{item['id']}' was provided without its required 'reasoning' item: 'rs_{number}'."
        elif kind == "message" and wanted and item["role"] != "assistant":
            yield f"No tool output found for function call {wanted[0]}."
        if reasoned is not None and (kind not in _LED or item.get("role") == "user"):
            yield f"Item '{reasoned}' of type 'reasoning' was provided without its required following item."
        number = _reply_of(item)
        if reasoned is not None and None not in (led, number) and led != number:
            yield f"Item '{reasoned}' of type 'reasoning' was provided without its required following item ({at})."
        reasoned, led = (item.get("id", "?"), number) if kind == "reasoning" else (None, None)
        if kind == "reasoning" and item["encrypted_content"] not in provider.thoughts:
            yield f"The encrypted content of {reasoned} could not be verified."
    if wanted:
        yield f"No tool output found for function call {wanted[0]}."
    if reasoned:
        yield f"Item '{reasoned}' of type 'reasoning' was provided without its required following item."
    yield from _check_task_is_there(
        [_texts(item["content"]) for item in entries if item.get("role") == "user"], provider
    )
    results = {item["call_id"]: item["output"] for item in entries if item.get("type") == "function_call_output"}
    if entries[-1].get("type") == "function_call_output":
        newest = f"{entries[-1]['call_id'].rpartition('_')[0]}_"
        yield from _newest([name for name in results if name.startswith(newest)], results, provider)
    else:
        yield from _newest_text(_texts(entries[-1].get("content")), provider)


def _reply_of(item: Json) -> int | None:
    """The number of the reply that an item is of, where it tells."""
    told = item.get("encrypted_content") or item.get("call_id") or ""
    if not told and item.get("role") == "assistant":
        told = " ".join(_texts(item["content"]))
    found = _REPLY.findall(told)
    return int(found[-1]) if found else None


def _gemini(body: Json, entries: list[Json], provider: StrictProvider) -> Iterator[str]:
    if _texts(body.get("systemInstruction", {}).get("parts")) != [strict_provider.SYSTEM]:
        yield "the system prompt is not the client's"
    asked: list[str] = []
    turns = [at for at, entry in enumerate(entries) if entry["role"] == "user" and not _responses_in(entry)]
    for at, entry in enumerate(entries):
        if entry["role"] != ("user", "model")[at % 2]:
            yield f"contents[{at}]: roles must alternate, beginning with user"
        if not entry["parts"] or any(not part for part in entry["parts"]):
            yield f"contents[{at}].parts must not be empty"
        found = [result["id"] for result in _responses_in(entry)]
        if sorted(found) != sorted(asked):
            yield (
                "Please ensure that the number of function response parts is equal to the number of function call "
                f"parts of the function call turn: {asked} {found} ({at})"
            )
        calls = [part for part in entry["parts"] if "functionCall" in part]
        asked = [part["functionCall"]["id"] for part in calls]
        if provider.thinks and calls and at > turns[-1] and not calls[0].get("thoughtSignature"):
            yield f"Function call is missing a thought_signature in functionCall parts ({at})."
        yield from _gemini_thoughts(at, entry, provider)
    if asked:
        yield f"calls without results at the end: {asked}"
    yield from _check_task_is_there([_texts(entry["parts"]) for entry in entries if entry["role"] == "user"], provider)
    results = {result["id"]: result["response"].get("output") for result in _responses_in(entries[-1])}
    if results:
        calls = [part["functionCall"]["id"] for part in entries[-2]["parts"] if "functionCall" in part]
        yield from _newest(calls, results, provider)
    else:
        yield from _newest_text(_texts(entries[-1]["parts"]), provider)


def _converse(body: Json, entries: list[Json], provider: StrictProvider) -> Iterator[str]:
    if _texts(body.get("system")) != [strict_provider.SYSTEM]:
        yield "the system prompt is not the client's"
    if json.dumps(body).count('"cachePoint"') > 4:
        yield "You invoked an unsupported model or your request did not allow prompt caching: more than 4 cache points"
    asked: list[str] = []
    for at, entry in enumerate(entries):
        if entry["role"] != ("user", "assistant")[at % 2]:
            yield f"A conversation must alternate between user and assistant roles ({at})."
        blocks = [block for block in entry["content"] if "cachePoint" not in block]
        if not blocks or any(not block.get("text", "x").strip() for block in blocks):
            yield f"The content field in the Message object at messages.{at} is empty."
        found = [block["toolResult"]["toolUseId"] for block in blocks if "toolResult" in block]
        if sorted(found) != sorted(asked):
            yield f"Expected toolResult blocks at messages.{at}.content for the following Ids: {asked}, found {found}"
        if any("toolResult" not in block for block in blocks[: len(found)]):
            yield f"messages.{at}: toolResult blocks must stand first"
        calls = [block["toolUse"] for block in blocks if "toolUse" in block]
        asked = [call["toolUseId"] for call in calls]
        if any(not isinstance(call["input"], dict) for call in calls):
            yield f"The format of the value at messages.{at}.content.toolUse.input is invalid."
        for block in blocks:
            reasoned = block.get("reasoningContent", {}).get("reasoningText")
            if reasoned and provider.thoughts.get(reasoned["signature"]) != reasoned["text"]:
                yield f"messages.{at}: `thinking` blocks cannot be modified"
        if asked and at >= len(entries) - 2 and provider.thinks and "reasoningContent" not in blocks[0]:
            yield f"messages.{at}: an open tool turn must begin with its reasoning"
        if entry["role"] == "assistant" and "reasoningContent" in blocks[-1]:
            yield f"messages.{at}: The final block in an assistant message cannot be `thinking`."
    if asked:
        yield f"calls without results at the end: {asked}"
    yield from _check_task_is_there(
        [_texts(entry["content"]) for entry in entries if entry["role"] == "user"], provider
    )
    results = [block["toolResult"] for block in entries[-1]["content"] if "toolResult" in block]
    if results:
        calls = [block["toolUse"]["toolUseId"] for block in entries[-2]["content"] if "toolUse" in block]
        told = {result["toolUseId"]: "".join(_texts(result["content"])) for result in results}
        yield from _newest(calls, told, provider)
    else:
        yield from _newest_text(_texts(entries[-1]["content"]), provider)


def _responses_in(entry: Json) -> list[Json]:
    return [part["functionResponse"] for part in entry["parts"] if "functionResponse" in part]


def _gemini_thoughts(at: int, entry: Json, provider: StrictProvider) -> Iterator[str]:
    for part in entry["parts"]:
        signature = part.get("thoughtSignature")
        if signature is not None and provider.thoughts.get(signature) is None:
            yield f"contents[{at}]: Corrupted thought signature."
        if part.get("thought") and signature and provider.thoughts.get(signature) != part["text"]:
            yield f"contents[{at}]: a thought was changed"


_RULES = {
    "chat": _chat, "responses": _responses, "messages": _messages, "gemini": _gemini, "converse": _converse
}  # fmt: skip


# -- what must still be there ------------------------------------------------------------------------------------------


def _check_task_is_there(user: list[list[str]], provider: StrictProvider) -> Iterator[str]:
    task = strict_provider.turn_text(0, provider.run)
    if not any(text.startswith(task) for texts in user for text in texts):
        yield "the first task is not there"


def _newest(calls: list[str], results: dict[str, Any], provider: StrictProvider) -> Iterator[str]:
    if not calls:
        yield "the newest results are not there"
    for call in calls if provider.whole else ():
        if result_text(results.get(call)) != strict_provider.result_of(call, provider.words) and _CALL.match(call):
            yield f"the newest result is not whole: {call}"


def result_text(text: Any) -> Any:
    """The text of a tool result, without recalled text in front of it."""
    return (
        text.rpartition("[What follows is what the tool returned.]")[2].lstrip("\n") if isinstance(text, str) else text
    )


def _newest_text(texts: list[str], provider: StrictProvider) -> Iterator[str]:
    known = [strict_provider.turn_text(turn, provider.run) for turn in range(40)]
    # Where all before it was compacted, it is one message with what stands for that.
    ends = tuple(f"\n\n{each}" for each in known)
    # What came from memory, asked for or not, stands behind it.
    own = [_MEMORY.split(text)[0].removesuffix("\n\n") for text in texts]
    if not any(not text or text in known or text.startswith("Q:") or text.endswith(ends) for text in own):
        yield f"the newest message is not there, but {texts}"


def _texts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    return [part["text"] for part in content or () if "text" in part]

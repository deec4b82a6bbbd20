"""Writes an entry of a history down differently without saying anything else, as clients' libraries do.

The differences are the equivalences of proxy/accordion/protocols/message_keys.py.
"""

from __future__ import annotations

import json
import re
from random import Random
from typing import Any

from tests.histories import Json, ProtocolName

_SNAKE = re.compile("[A-Z]")


def respell(entry: Json, protocol_name: ProtocolName, random: Random) -> str:
    """The JSON of an entry that says the same in other words."""
    out = dict(entry)
    if protocol_name == "gemini":
        return _respell_gemini(out, random)
    if protocol_name == "converse":
        return _respell_converse(out, random)
    for name in ("content", "output"):
        if name in out:
            out[name] = _respell_content(out[name], protocol_name, entry.get("role"), random)
    if "arguments" in out:
        out["arguments"] = _respell_arguments(out["arguments"], random)
    if "tool_calls" in out:
        out["tool_calls"] = [_respell_call(call, at, random) for at, call in enumerate(out["tool_calls"])]
    out |= _idle(out, protocol_name, random)
    return json.dumps(_shuffled(out, random), ensure_ascii=random.random() < 0.5, indent=random.choice([None, None, 1]))


def _respell_gemini(entry: Json, random: Random) -> str:
    """The same content with its names in either spelling, and without what is the default."""
    out = {name: value for name, value in entry.items() if (name, value) != ("role", "user") or random.random() < 0.5}
    out["parts"] = [_respell_gemini_part(part, random) for part in entry["parts"]]
    if random.random() < 0.2:
        out["parts"].insert(random.randrange(len(out["parts"]) + 1), {"text": ""})
    return json.dumps(_shuffled(out, random), ensure_ascii=random.random() < 0.5, indent=random.choice([None, None, 1]))


def _respell_converse(entry: Json, random: Random) -> str:
    """The same message with cache points, empty fields, and a status that is the default."""
    out, blocks = dict(entry), list[Json]()
    for block in entry["content"]:
        other = dict(block)
        if "toolResult" in block and random.random() < 0.3:
            other["toolResult"] = _shuffled({"status": "success", **block["toolResult"]}, random)
        if "toolUse" in block:
            other["toolUse"] = _shuffled(block["toolUse"] | random.choice([{}, {"type": None}]), random)
        blocks.append(other)
        if random.random() < 0.3:
            blocks.append({"cachePoint": {"type": "default"}})
    out["content"] = blocks
    return json.dumps(_shuffled(out, random), ensure_ascii=random.random() < 0.5, indent=random.choice([None, None, 1]))


def _respell_gemini_part(part: Json, random: Random) -> Json:
    out = dict(part)
    if "functionCall" in out:
        call = dict(out["functionCall"])
        if call["args"] == {} and random.random() < 0.5:
            call["args"] = None
        out["functionCall"] = _shuffled(call, random)
    if random.random() < 0.3:
        out = {_SNAKE.sub(lambda match: "_" + match[0].lower(), name): value for name, value in out.items()}
    return _shuffled(out, random)


def _respell_content(content: Any, protocol_name: ProtocolName, role: str | None, random: Random) -> Any:
    texts = {
        "chat": "text",
        "messages": "text",
        "gemini": "text",
        "converse": "text",
        "responses": "output_text" if role == "assistant" else "input_text",
    }
    if isinstance(content, str) and random.random() < 0.5:
        content = [{"type": texts[protocol_name], "text": content}]
    if not isinstance(content, list):
        return random.choice([content, content or "", content or []])
    if len(content) == 1 and content[0].get("type") == texts[protocol_name] and random.random() < 0.5:
        return content[0]["text"]
    return [_respell_part(part, protocol_name, random) for part in content]


def _respell_part(part: Json, protocol_name: ProtocolName, random: Random) -> Json:
    out = dict(part)
    if "content" in out:
        out["content"] = _respell_content(out["content"], protocol_name, None, random)
    if random.random() < 0.3 and out.get("type") != "thinking":
        if protocol_name == "messages":
            out["cache_control"] = random.choice([None, {"type": "ephemeral"}, {"type": "ephemeral", "ttl": "1h"}])
        else:
            out["prompt_cache_breakpoint"] = {"mode": "explicit"}
    if out.get("type") in {"text", "output_text"} and random.random() < 0.3:
        out[random.choice(["annotations", "citations", "logprobs"])] = random.choice([None, []])
    if out.get("type") == "tool_result" and random.random() < 0.3:
        out.setdefault("is_error", False)
    if out.get("type") == "tool_use" and random.random() < 0.3:
        out["caller"] = {"type": "direct"}
    return _shuffled(out, random)


def _respell_call(call: Json, at: int, random: Random) -> Json:
    function = dict(call["function"]) | {"arguments": _respell_arguments(call["function"]["arguments"], random)}
    out = dict(call) | {"function": _shuffled(function, random)}
    if random.random() < 0.3:
        out["index"] = at
    if random.random() < 0.3:
        del out["type"]
    return _shuffled(out, random)


def _respell_arguments(text: str, random: Random) -> Any:
    value = json.loads(text)
    if value == {} and random.random() < 0.3:
        return ""
    if random.random() < 0.2:
        return _shuffled(value, random)
    return json.dumps(
        _shuffled(value, random), indent=random.choice([None, 2]), ensure_ascii=random.random() < 0.5
    )  # fmt: skip


def _idle(entry: Json, protocol_name: ProtocolName, random: Random) -> Json:
    """Fields that client libraries add without saying anything."""
    role = entry.get("role")
    options: list[Json] = [{}]
    if protocol_name == "chat" and role == "assistant":
        options += [{"refusal": None, "annotations": [], "audio": None, "function_call": None}, {"parsed": None}]
        options += [] if "tool_calls" in entry else [{"tool_calls": []}, {"tool_calls": None}]
    if protocol_name == "responses":
        options += [{"status": "completed"}, {"status": None}, {"id": f"it_{random.randrange(10**6)}"}]
        options += [{"type": "message"}] if role else []
    return random.choice(options)


def _shuffled(value: Json, random: Random) -> Json:
    pairs = list(value.items())
    random.shuffle(pairs)
    return dict(pairs)


def reform(history: list[Json], protocol_name: ProtocolName, random: Random) -> list[Json]:
    """The same history in another form: with names, without some of the reasoning, with other notes of libraries."""
    return [other for entry in history for other in _reform_entry(entry, protocol_name, random)]


def _reform_entry(entry: Json, protocol_name: ProtocolName, random: Random) -> list[Json]:
    out = dict(entry)
    if out.get("type") == "reasoning":
        return random.choice([[], [out], [out | {"encrypted_content": "other"}]])
    if protocol_name == "gemini":
        return _reform_content(out, random)
    if protocol_name == "converse":
        kept = [block for block in out["content"] if "reasoningContent" not in block or random.random() < 0.3]
        return [out | {"content": kept}]
    if protocol_name == "chat":
        name = random.choice(["reasoning_content", "reasoning", "reasoning_text", "reasoning_opaque"])
        out = {name: held for name, held in out.items() if name != "reasoning_content" or random.random() < 0.3}
        if out["role"] == "assistant":
            out |= random.choice([{}, {name: "thought"}, {"annotations": [{"type": "url_citation"}]}])
            out |= random.choice([{}, {"provider_specific_fields": {"refusal": None, "x": 1}}, {"id": "msg_1"}])
        out |= random.choice([{}, {"name": "somebody"}])
        if "tool_calls" in out and random.random() < 0.5:
            signed = {"extra_content": {"google": {"thought_signature": "s"}}}
            out["tool_calls"] = [call | signed for call in out["tool_calls"]]
    if isinstance(out.get("content"), list) and out.get("role") == "assistant":
        kept = [part for part in out["content"] if part.get("type") != "thinking" or random.random() < 0.3]
        kept = [part | {"citations": [{"cited_text": "x"}]} if part["type"] == "text" else part for part in kept]
        # Without a text no client sends the message.
        out["content"] = kept
    if protocol_name == "responses" and out.get("role") == "assistant":
        out |= random.choice([{}, {"phase": "commentary"}])
    return [out]


def _reform_content(entry: Json, random: Random) -> list[Json]:
    kept = [part for part in entry["parts"] if not part.get("thought") or random.random() < 0.3]
    if random.random() < 0.5:
        kept = [{name: held for name, held in part.items() if name != "thoughtSignature"} for part in kept]
    return [entry | {"parts": kept}]

"""The canonical form of Gemini's contents, from which message keys are made (message_keys.py).

Beside the equivalences of all protocols, it is the same for both spellings of a name, for a role `user` that is left
out, and for arguments that are absent or empty. Arguments and results are data and stay as they are. Signatures and
thoughts are in the key, and not in what a message says.
"""

from __future__ import annotations

from typing import Any

from accordion.protocols.gemini.fields import camel_case
from accordion.protocols.gemini.parts import is_thought, signature_of
from accordion.protocols.json_values import as_list, as_mapping

_PLAIN = frozenset({"text"})
_DATA = frozenset({"functionCall", "functionResponse"})


def canonical_content(entry: dict[str, Any]) -> dict[str, Any]:
    """Returns the canonical form of a content, in the names of message_keys.py."""
    fields = {name: value for name, value in entry.items() if name not in {"role", "parts"} and value is not None}
    parts = [canonical for part in as_list(entry.get("parts")) if (canonical := _canonical_part(part)) is not None]
    content = {"content": parts} if parts else {}
    return {"role": entry.get("role") or "user", **content, **fields}


def _canonical_part(part: Any) -> Any:
    """Returns the canonical form of a part; None for one that says nothing."""
    if type(part) is not dict:
        return [part]
    fields = {camel_case(name): value for name, value in part.items() if value is not None}
    if fields.keys() == _PLAIN and type(fields["text"]) is str:
        return fields["text"] or None
    for name in _DATA & fields.keys():
        fields[name] = _canonical_call(as_mapping(fields[name]))
    signature = signature_of(fields)
    if is_thought(fields) or fields.keys() == {"thoughtSignature"}:
        return {"type": "thinking", **fields}
    if signature:
        del fields["thoughtSignature"]
        fields["thought_signature"] = signature
    if "text" in fields:
        fields["type"] = "text"
    return fields


def _canonical_call(call: dict[str, Any]) -> dict[str, Any]:
    """Returns a call with its arguments in any case, or a result, without absent fields.

    `input` is a name whose value message_keys.py takes for data.
    """
    fields = {camel_case(name): value for name, value in call.items() if value is not None}
    data = fields.pop("response", None) or fields.pop("args", None)
    return {**fields, "input": data or {}}

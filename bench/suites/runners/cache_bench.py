"""maf-cachebench: which planted facts its recall probe still finds in the last prompt, and what prompts cost.

No provider is called: the facts are looked for in the prompt, and of each prompt the longest beginning that the prompt
before had too counts as cached. Accordion stands beside the suite's own strategies, which are those of the Microsoft
Agent Framework. A strategy that needs a model is left out.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from functools import partial
from itertools import count
from typing import Any

from agent_framework import apply_compaction  # type: ignore[import-not-found]
from maf_cachebench._cli_selection import replay_strategy_names  # type: ignore[import-not-found]
from maf_cachebench._metrics import common_message_prefix, serialize_message  # type: ignore[import-not-found]
from maf_cachebench._recall import build_recall_scenario  # type: ignore[import-not-found]
from maf_cachebench._strategies import StrategyOptions, build_strategy  # type: ignore[import-not-found]
from maf_cachebench._tokenizers import build_tokenizer  # type: ignore[import-not-found]
from maf_cachebench._transcripts import build_preset  # type: ignore[import-not-found]

from bench.suites.product import Messages, Product

WINDOWS = (32_000, 16_000)
PRESETS = ("mid", "large")
WINDOW_SHARE = 0.6
"""Of a preset's length: the window that the suite takes for it."""
DENSER = 2
"""The suite's estimator counts about twice as many tokens as a model has: Accordion gets the same room in text."""
SEEDS = 5
CACHED = 0.25
"""The price of a cached token, as the suite has it."""
OURS = "accordion"


class Accordion:
    """Answers with the prompt that would be sent for a history."""

    _numbers = count()

    def __init__(self, product: Product, window: int) -> None:
        self._product, self._window, self._name = product, window, f"cache-{next(self._numbers)}"

    def prompt(self, history: Sequence[Any]) -> list[str]:
        listed = [each for message in history for each in _chat(message)]
        sent = self._product.compact(listed, self._window, self._name)
        return [json.dumps(each, ensure_ascii=False, sort_keys=True) for each in sent]


class Strategy:
    """The same by one of the suite's own strategies."""

    def __init__(self, name: str, window: int, tokenizer: Any) -> None:
        options = StrategyOptions(tokenizer=tokenizer, max_context_window_tokens=window, max_output_tokens=512)
        self._strategy, self._tokenizer = build_strategy(name, options), tokenizer

    def prompt(self, history: list[Any]) -> list[str]:
        sent = asyncio.run(apply_compaction(history, strategy=self._strategy, tokenizer=self._tokenizer))
        return [serialize_message(each) for each in sent]


def main() -> None:
    tokenizer = build_tokenizer("estimator")
    names = [OURS, *(name for name in replay_strategy_names() if "summariz" not in name)]
    with Product() as product:

        def contender(name: str, window: int) -> Any:
            return Accordion(product, window // DENSER) if name == OURS else Strategy(name, window, tokenizer)

        facts = {
            name: {window: _facts(partial(contender, name, window), tokenizer) for window in WINDOWS} for name in names
        }
        costs = {name: {preset: _cost(name, preset, contender, tokenizer) for preset in PRESETS} for name in names}
    print(json.dumps({"facts": facts, "costs": costs, "seeds": SEEDS}))


def _facts(make: Any, tokenizer: Any) -> list[float]:
    """The share of planted facts that stand in the last prompt, and its tokens."""
    found, tokens = list[bool](), list[int]()
    for seed in range(SEEDS):
        scenario, contender = build_recall_scenario(salt=f"bench-{seed}"), make()
        history, prompt = [scenario.transcript.system], list[str]()
        for turn in scenario.transcript.turns:
            history.extend(turn.request)
            prompt = contender.prompt(history)
            history.extend(turn.reply)
        text = "\n".join(prompt)
        found += [fact.appears_in(text) for fact in scenario.facts]
        tokens.append(sum(map(tokenizer.count_tokens, prompt)))
    return [100 * sum(found) / len(found), sum(tokens) / len(tokens)]


def _cost(name: str, preset: str, make: Any, tokenizer: Any) -> float:
    """Tokens of all prompts, cached ones at their price."""
    transcript = build_preset(preset, salt="bench", tokenizer=tokenizer)
    contender = make(name, int(transcript.approx_final_prompt_tokens * WINDOW_SHARE))
    history, before, cost = [transcript.system], list[str](), 0.0
    for turn in transcript.turns:
        history.extend(turn.request)
        prompt = contender.prompt(history)
        sizes = list(map(tokenizer.count_tokens, prompt))
        shared = common_message_prefix(before, prompt)
        cost += sum(sizes) - (1 - CACHED) * sum(sizes[:shared])
        history.extend(turn.reply)
        before = prompt
    return cost


def _chat(message: Any) -> Messages:
    """A message of the framework's as the Chat Completions API has it."""
    contents = [each.to_dict() for each in message.contents]
    results = [
        {"role": "tool", "tool_call_id": each["call_id"], "content": str(each.get("result", ""))}
        for each in contents
        if each["type"] == "function_result"
    ]
    if results:
        return results
    calls = [
        {
            "id": each["call_id"],
            "type": "function",
            "function": {"name": each["name"], "arguments": str(each["arguments"])},
        }
        for each in contents
        if each["type"] == "function_call"
    ]
    text = "\n".join(each["text"] for each in contents if each["type"] == "text")
    out: dict[str, Any] = {"role": str(message.role), "content": text or None}
    return [{**out, "tool_calls": calls} if calls else out]


if __name__ == "__main__":
    main()

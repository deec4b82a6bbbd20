import base64
import json
import random
import string
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accordion.accounting.token_estimate import CELL, REACH, ROUNDS, TextEstimate, estimate_text_tokens
from accordion.providers.models.tokenizer import ENCODINGS, TiktokenCounter
from tests.tiers import examples

ROOT = Path(__file__).parents[2]
COUNTER = TiktokenCounter()
SIZE = 40_000
PROSE = (ROOT / "docs" / "how-it-works.md").read_text()
CODE = (ROOT / "proxy" / "accordion" / "compaction" / "policy.py").read_text()


def fill(piece: str) -> Callable[[random.Random], str]:
    return lambda _: (piece * (SIZE // len(piece) + 1))[:SIZE]


def draw(first: int, last: int) -> Callable[[random.Random], str]:
    return lambda chance: "".join(chr(chance.randint(first, last)) for _ in range(SIZE // 2))


def join(words: str) -> Callable[[random.Random], str]:
    return lambda chance: "".join(chance.choices(words.split(), k=SIZE // 3))


def write_logs(chance: random.Random) -> str:
    line = "2026-11-26 12:{:02}:{:02}.{:03} INFO [worker-{}] request {:x} took {} ms path=/v1/items/{}\n"
    return "".join(
        line.format(*(chance.randrange(most) for most in (60, 60, 1_000, 9, 2**64, 999, 99))) for _ in range(SIZE // 80)
    )


KINDS: dict[str, Callable[[random.Random], str]] = {
    "prose": fill(PROSE),
    "code": fill(CODE),
    "json": lambda chance: json.dumps([{"id": n, "value": chance.random()} for n in range(SIZE // 40)]),
    "logs": write_logs,
    "chinese": join("模型 对话 压缩 上下文 的 是 ， 。 我们 可以 代码 请求"),
    "japanese": join("モデル 会話 を 圧縮 する コード です 。 リクエスト と ます 私たち"),
    "chinese characters": draw(0x4E00, 0x9FA5),
    "base64": lambda chance: base64.b64encode(chance.randbytes(SIZE)).decode(),
    "hexadecimal": lambda chance: chance.randbytes(SIZE // 2).hex(),
    "letters": lambda chance: "".join(chance.choices(string.ascii_letters, k=SIZE)),
    "printable": draw(32, 126),
    "control": draw(1, 31),
    "emoji": draw(0x1F300, 0x1FAFF),
    "accents": draw(0xC0, 0x17F),
    "surrogates": fill("\ud800"),
    "blanks": fill(" "),
    "lines": fill("\n"),
    "indentation": fill("    \t\n"),
    "one letter": fill("a"),
    "punctuation": fill("!?{}"),
}
kinds = st.sampled_from(sorted(KINDS))


def exact(texts: list[str], encoding: str) -> int:
    return sum(COUNTER._count(text, encoding) for text in texts)


def estimates(texts: list[str], encoding: str, seed: bytes = b"seed") -> list[TextEstimate]:
    return list(estimate_text_tokens(texts, seed, lambda text: COUNTER._count(text, encoding)))


def estimated(texts: list[str], encoding: str, seed: bytes = b"seed") -> TextEstimate:
    return estimates(texts, encoding, seed)[-1]


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_the_estimate_of_one_kind_of_text_is_near_its_count(kind: str, encoding: str) -> None:
    text = KINDS[kind](random.Random(kind))
    count, (first, _, last) = exact([text], encoding), estimates([text], encoding)
    size = len(text.encode("utf-8", "surrogatepass"))
    assert count <= last.bound <= count + 0.12 * size
    assert count <= first.bound <= count + 0.45 * size
    # Only a cell of half a character ends between two tokens that are one.
    tolerance = 0.5 if kind == "surrogates" else 0.0
    assert abs(last.likely - count) <= (0.1 + tolerance) * count + 0.01 * size
    assert abs(first.likely - count) <= (0.15 + tolerance) * count + 0.02 * size


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.tuples(kinds, st.integers(0, SIZE), st.integers(0, SIZE)), max_size=6),
    st.sampled_from(ENCODINGS),
    st.binary(max_size=8),
)
def test_a_count_does_not_exceed_the_bound_whatever_the_texts(
    parts: list[tuple[str, int, int]], encoding: str, seed: bytes
) -> None:
    texts = [KINDS[kind](random.Random(start))[start:end] for kind, start, end in parts]
    assert exact(texts, encoding) <= min(each.bound for each in estimates(texts, encoding, seed))


@pytest.mark.parametrize("share", [0.02, 0.05, 0.1, 0.3])
def test_a_dense_part_of_any_size_is_within_the_bound(share: float) -> None:
    """However little of the text it is, and wherever it begins."""
    plain, dense = KINDS["blanks"](random.Random(1)) * 4, KINDS["control"](random.Random(2)) * 4
    length = int(len(plain) * share)
    for start in range(0, len(plain) - length, len(plain) // 7):
        text = plain[:start] + dense[:length] + plain[start + length :]
        assert exact([text], "o200k_base") <= estimated([text], "o200k_base", b"%d" % start).bound


def test_a_text_that_is_not_alike_has_a_wider_bound() -> None:
    chance = random.Random(3)
    alike = estimated([KINDS["printable"](chance)] * 2, "o200k_base")
    mixed = estimated([KINDS["printable"](chance), fill(" ")(chance)[: SIZE // 2]], "o200k_base")
    assert mixed.bound - mixed.likely > 1.5 * (alike.bound - alike.likely)


def test_the_same_texts_have_the_same_estimate_and_another_seed_other_cells() -> None:
    texts = [CODE, PROSE]
    assert estimated(texts, "o200k_base") == estimated(texts, "o200k_base")
    assert len({estimated(texts, "o200k_base", b"%d" % number).likely for number in range(5)}) > 1


def test_many_short_texts_are_estimated_and_none_are_nothing() -> None:
    texts = [" ", "\n", "é", "漢", ""] * 3_000
    assert exact(texts, "o200k_base") <= estimated(texts, "o200k_base").bound
    assert estimated([], "o200k_base") == estimated([""], "o200k_base") == TextEstimate(0, 0)


def test_a_token_for_each_byte_is_the_bound_of_any_text() -> None:
    rounds = estimate_text_tokens([CODE], b"", lambda text: len(text.encode()))
    assert {(each.likely, each.bound) for each in rounds} == {(len(CODE.encode()), len(CODE.encode()))}


def test_only_samples_are_counted() -> None:
    counted = list[str]()
    rounds = estimate_text_tokens([CODE * 200], b"", lambda text: counted.append(text) or 1)  # type: ignore[func-returns-value]
    for samples in ROUNDS:
        next(rounds)
        assert len(counted) == samples
        assert max(map(len, counted)) <= CELL + REACH
        counted.clear()

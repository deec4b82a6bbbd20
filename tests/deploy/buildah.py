"""Images and containers without a daemon: buildah, on a base that is made of Debian's packages.

The base stands for the image that the Dockerfile's FROM names. Steps and containers run in a chroot, as root, and on
this machine's network.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.deploy.conftest import program, run
from tests.proxy_process import held_port

ROOT = Path(__file__).parents[2]
DEBIAN = "trixie"
"""The release of Debian whose Python is the one that the Dockerfile names."""
_CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
_PATIENCE = 1200.0
"""How long one step may take, in seconds."""


@dataclass(slots=True)
class Storage:
    """Images and containers in a folder of their own, and the settings with which this machine gets packages."""

    folder: Path
    pip: tuple[str, ...] = ()
    driver: str = "overlay"
    """How a layer is put on those below it; without overlays it is a copy of them."""

    @classmethod
    def create(cls, folder: Path) -> Storage:
        """Returns an empty storage. Skips the test where the programs are missing."""
        program("buildah"), program("mmdebstrap")
        # No overlay can have its files in another one, as those of a container are.
        is_overlay = run("stat", "--file-system", "--format=%T", folder).stdout.strip() == "overlayfs"
        return cls(folder, pip_options(folder), "vfs" if is_overlay else "overlay")

    def command(self, name: str, *arguments: str | Path) -> list[str]:
        """Returns the command line of one of buildah's commands."""
        place = ["--root", f"{self.folder}/root", "--runroot", f"{self.folder}/run", "--storage-driver", self.driver]
        return ["buildah", *place, name, *map(str, arguments)]

    def call(self, name: str, *arguments: str | Path) -> str:
        """Runs one of buildah's commands; returns what it prints, without the end of the line."""
        environ = {"TMPDIR": str(self.folder)}
        done = run(*self.command(name, *arguments), environ=environ, seconds=_PATIENCE)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout.strip()

    def create_base(self, name: str) -> Image:
        """Creates the base image: Python and the certificates of Debian, as `python`."""
        context = self.folder / "base"
        context.mkdir()
        made = run(
            *("mmdebstrap", "--variant=minbase", "--include=python3,python3-venv,ca-certificates"),
            *("--customize-hook=ln -s python3 $1/usr/bin/python", DEBIAN, context / "base.tar", debian_mirror()),
            seconds=_PATIENCE,
        )
        assert made.returncode == 0, made.stderr[-3000:]
        path = "/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin"
        (context / "Dockerfile").write_text(f"FROM scratch\nADD base.tar /\nENV PATH={path}\n")
        self.call("build", "--isolation", "chroot", "--tag", name, context)
        shutil.rmtree(context)
        return Image(self, name)

    def build(self, name: str, *options: str) -> Image:
        """Builds the repository's Dockerfile, on the base image that is there."""
        fixed = ("--isolation", "chroot", "--format", "docker", "--pull-never")
        self.call("build", *fixed, *self.pip, *options, "--tag", name, ROOT)
        return Image(self, name)


@dataclass(slots=True)
class Image:
    """An image, and a container of it that is not started: the files, and the settings that the Dockerfile gives."""

    storage: Storage
    name: str
    container: str = field(init=False)
    files: Path = field(init=False)
    settings: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.container = self.storage.call("from", "--pull-never", self.name)
        self.files = Path(self.storage.call("mount", self.container))
        self.settings = json.loads(self.storage.call("inspect", self.container))["Docker"]["config"]
        # Else buildah may mount a folder of its own there, in place of the one that `start` is given.
        for volume in self.settings.get("Volumes") or ():
            self.storage.call("config", "--volume", f"{volume}-", self.container)

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(path.lstat().st_size for path in self.files.rglob("*") if path.is_file() or path.is_symlink())

    @property
    def home(self) -> str:
        """The home of the Dockerfile's user, which Docker gives to its programs as HOME."""
        users = (self.files / "etc" / "passwd").read_text().splitlines()
        return next(fields[5] for fields in (line.split(":") for line in users) if fields[0] == self.settings["User"])

    def command(self, program: Sequence[str], *options: str) -> list[str]:
        """Returns the command line that runs a program in the container, as the Dockerfile's user."""
        return self.storage.command("run", "--isolation", "chroot", *options, self.container, "--", *program)

    @contextmanager
    def start(self, data: Path, *options: str) -> Iterator[Service]:
        """Starts the image's command as the first process of the container, with a folder as its volume, on a free
        port. Ends it if it still runs.
        """
        (volume,) = self.settings["Volumes"]
        user = self.settings["User"]
        owner = (self.files / volume.lstrip("/")).stat()
        data.mkdir(exist_ok=True)
        os.chown(data, owner.st_uid, owner.st_gid)
        with held_port() as port:
            options = ("--env", f"ACCORDION_PORT={port}", "--volume", f"{data}:{volume}", *options)
            # The first process of a container is the first of a namespace, which only root can make.
            options = ("--user", "root", "--cap-add", "CAP_SYS_ADMIN", "--env", f"HOME={self.home}", *options)
            first = ("unshare", "--pid", "--fork", "--kill-child", "setpriv", "--clear-groups")
            first = (*first, f"--reuid={user}", f"--regid={user}", *self.settings["Cmd"])
            # `exec` keeps the id of the process, which is the same in a chroot as outside.
            command = self.command(["sh", "-c", 'echo "$$" && exec "$@"', "sh", *first], *options)
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            assert process.stdout is not None
            service = Service(self, port, process, int(process.stdout.readline()))
            try:
                service.read_until("Application startup complete")
                yield service
            finally:
                if process.poll() is None:
                    os.kill(service.parent, signal.SIGKILL)
                process.stdout.close()
                process.wait(60)


@dataclass(slots=True)
class Service:
    """A container that runs."""

    image: Image
    port: int
    process: subprocess.Popen[str]
    parent: int
    log: str = ""

    @property
    def url(self) -> str:
        """The address at which this machine reaches it."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Its process, as this machine counts them; in the container it is 1."""
        return int(Path(f"/proc/{self.parent}/task/{self.parent}/children").read_text())

    @property
    def user(self) -> int:
        """The id of the user that it runs as."""
        return Path(f"/proc/{self.pid}").stat().st_uid

    def read_until(self, text: str) -> None:
        """Reads the log until a line has this text. Fails if the program ends before."""
        assert self.process.stdout is not None
        while not self.log.endswith("\n") or text not in self.log.splitlines()[-1]:
            line = self.process.stdout.readline()
            assert line, f"it ended:\n{self.log}"
            self.log += line

    def is_healthy(self) -> bool:
        """Runs the image's health check in the container, as often as Docker does before it gives up."""
        kind, *check = self.image.settings["Healthcheck"]["Test"]
        assert kind == "CMD"
        command = self.image.command(check, "--env", f"ACCORDION_PORT={self.port}")
        return any(run(*command).returncode == 0 for _ in range(3))

    def stop(self) -> int:
        """Ends it as `docker stop` does; returns the exit code."""
        os.kill(self.pid, signal.SIGTERM)
        assert self.process.stdout is not None
        self.log += self.process.stdout.read()
        return self.process.wait(60)


def debian_mirror() -> str:
    """Returns the address from which this machine gets Debian's packages."""
    listed = run("apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages").stdout
    return next(address for address in listed.split() if address.rstrip("/").endswith("/debian"))


def pip_options(folder: Path) -> tuple[str, ...]:
    """Returns buildah's options that give each build this machine's settings of pip, and the files that these name."""
    listed = run(sys.executable, "-m", "pip", "config", "list").stdout
    found = re.findall(r"^(?:global|:env:)\.([\w-]+)=(.*)$", listed, re.MULTILINE)
    settings = {name: str(ast.literal_eval(value)) for name, value in found}
    if Path(_CERTIFICATES).exists():
        settings.setdefault("cert", _CERTIFICATES)
    named = {Path(word.removeprefix("file://")) for value in settings.values() for word in value.split()}
    # An index in a folder has links to files beside it.
    paths = {path.parent if path.is_dir() else path for path in named if path.is_absolute() and path.exists()}
    lines = [f"{name} = {' '.join(value.split())}" for name, value in settings.items()]
    configuration = folder / "pip.conf"
    configuration.write_text("\n".join(["[global]", *lines, ""]))
    volumes = [f"{configuration}:/etc/pip.conf:ro", *(f"{path}:{path}:ro" for path in sorted(paths))]
    return tuple(f"--volume={volume}" for volume in volumes)

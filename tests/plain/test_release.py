"""What the release workflow publishes: it is built here as there."""

import email
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.message import Message
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
REPOSITORY = "https://git.example/me/accordion"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source distribution and the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("dist")
    environ = {**os.environ, "ACCORDION_REPOSITORY": REPOSITORY}
    subprocess.run([sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT)], env=environ, check=True)
    return folder


@pytest.fixture(scope="module")
def wheel(distributions: Path) -> zipfile.ZipFile:
    return zipfile.ZipFile(distributions / f"accordion_proxy-{PROJECT['version']}-py3-none-any.whl")


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> Message:
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    return email.message_from_bytes(wheel.read(name))


def test_the_links_of_the_readme_work_on_a_package_index(metadata: Message) -> None:
    text = metadata.get_payload(decode=True).decode()
    assert metadata["Description-Content-Type"] == "text/markdown"
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert len(links) > 10
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    prefix = f"{REPOSITORY}/blob/v{PROJECT['version']}/"
    targets = [link.removeprefix(prefix).partition("#")[0] for link in links if link.startswith(prefix)]
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_the_project_urls_lead_to_the_repository(metadata: Message) -> None:
    urls = dict(entry.split(", ", 1) for entry in metadata.get_all("Project-URL", []))
    assert {"Source", "Documentation", "Changelog", "Issues", "Security"} == set(urls)
    assert all(url.startswith(REPOSITORY) for url in urls.values())


def test_the_wheel_has_the_config_and_every_licence(wheel: zipfile.ZipFile) -> None:
    assert wheel.read("accordion/config/config.yaml") == (ROOT / "config.yaml").read_bytes()
    names = {name.partition(".dist-info/licenses/")[2] for name in wheel.namelist()}
    models = "proxy/accordion/providers/models"
    assert names >= {
        "LICENSE",
        f"{models}/data/LICENSE.litellm",
        f"{models}/data/LICENSE.tiktoken",
        f"{models}/data/NOTICE",
        f"{models}/minilm/LICENSE",
        f"{models}/minilm/NOTICE",
    }


def test_the_source_distribution_has_what_a_build_needs_and_no_tests(distributions: Path) -> None:
    with tarfile.open(distributions / f"accordion_proxy-{PROJECT['version']}.tar.gz") as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames()}
    top = {name.partition("/")[0] for name in names}
    documents = {"CHANGELOG.md", "LICENSE", "README.md", "SECURITY.md"}
    assert top == {*documents, ".gitignore", "PKG-INFO", "config.yaml", "hatch_build.py", "proxy", "pyproject.toml"}

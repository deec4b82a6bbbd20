"""Each feature can be left out: the rest of the program is built, forwards and compacts without it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from accordion.composition.features import FEATURES
from tests.features.without_feature import PLUGIN, VARIABLE

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "proxy/accordion/features"
CORE = (
    "tests/composition/test_core.py",
    "tests/composition/test_application.py",
    "tests/pipeline/test_forward.py",
    "tests/cli/test_check.py",
)
"""A selection of the core's tests."""


def test_every_package_of_features_has_a_line() -> None:
    assert sorted(FEATURES) == sorted(path.parent.name for path in FOLDER.glob("*/__init__.py"))


@pytest.mark.parametrize("name", FEATURES)
def test_the_core_s_tests_pass_without_a_feature(name: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", PLUGIN, *CORE]
    result = subprocess.run(
        command, cwd=ROOT, env={**os.environ, VARIABLE: name}, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout[-4_000:]

"""A plugin of pytest that leaves one feature out of the program: its line is gone, its package cannot be imported.

`VARIABLE` names the feature.
"""

import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from accordion.composition import features

PLUGIN = "tests.features.without_feature"
VARIABLE = "ACCORDION_TEST_WITHOUT"


class AbsentPackage(MetaPathFinder):
    """Refuses the import of a package and of all that is in it."""

    def __init__(self, package: str) -> None:
        self._package = package

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == self._package or fullname.startswith(f"{self._package}."):
            raise ModuleNotFoundError(f"{fullname} is left out", name=fullname)
        return None


def leave_out(name: str) -> None:
    """Leaves a feature out of this process."""
    assert name in features.FEATURES
    features.FEATURES = tuple(each for each in features.FEATURES if each != name)
    sys.meta_path.insert(0, AbsentPackage(f"accordion.features.{name}"))


if VARIABLE in os.environ:
    leave_out(os.environ[VARIABLE])

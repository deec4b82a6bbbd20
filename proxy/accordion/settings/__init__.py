"""config.yaml, environment and command line → frozen values, or an error that names the key.

Precedence: command line > environment > file > default. Only `wiring` and `cli` read settings.
"""

from accordion.settings.checks import hints
from accordion.settings.load import ENVIRONMENT, load
from accordion.settings.values import Model, Settings
from accordion.settings.watch import RESTART, Reloaded, SettingsFile

__all__ = ["ENVIRONMENT", "RESTART", "Model", "Reloaded", "Settings", "SettingsFile", "hints", "load"]

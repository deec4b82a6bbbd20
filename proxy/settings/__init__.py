"""config.yaml, environment and command line → frozen values, or an error that names the key.

Precedence: command line > environment > file > default. Only `wiring` and `cli` read settings.
"""

from proxy.settings.checks import hints
from proxy.settings.load import ENVIRONMENT, load
from proxy.settings.values import Model, Settings
from proxy.settings.watch import RESTART, Reloaded, SettingsFile

__all__ = ["ENVIRONMENT", "RESTART", "Model", "Reloaded", "Settings", "SettingsFile", "hints", "load"]

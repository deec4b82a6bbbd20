"""Settings from config.yaml, the environment and the command line. Errors name the key.

Precedence: command line > environment > file > default. Only `composition` and `cli` read settings.
"""

from accordion.config.checks import find_hints
from accordion.config.load import ENVIRONMENT, RESTART, ReloadResult, SettingsFile, load
from accordion.config.settings import ModelConfig, Settings

__all__ = ["ENVIRONMENT", "RESTART", "ModelConfig", "ReloadResult", "Settings", "SettingsFile", "find_hints", "load"]

"""Builds all objects from the settings. It is the only package that imports every other one."""

from accordion.composition.application import Application
from accordion.composition.tables import build_prices, rules_by_model

__all__ = ["Application", "build_prices", "rules_by_model"]

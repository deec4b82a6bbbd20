"""Builds all objects of the core from the settings (application.py), and then the features (features.py)."""

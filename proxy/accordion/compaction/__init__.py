"""Folding: what is too full is made to fit, once, and the same way ever after."""

"""Suites that others wrote, run on Accordion. Each is installed into an environment of its own, never into this one.

What is in `runners` is run by the Python of such an environment: it imports the suite, and reaches Accordion, which
needs other packages, through `product.py`.
"""

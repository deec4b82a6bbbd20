"""Run by the Python of a suite's own environment, as `python -m bench.suites.runners.NAME`; prints JSON."""

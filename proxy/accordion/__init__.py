"""Accordion: a proxy that keeps long-running agents inside their model's context window."""

import os

__version__ = "0.2.0"

# numpy reads it when it is imported. Its matrices are small here: more threads were measured to wait for each other for
# as long as they work, which doubles what a search costs.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

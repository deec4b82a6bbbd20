"""Answers each line of JSON on the standard input with one on the standard output; see product.py."""

from __future__ import annotations

import json
import logging
import sys

from bench.quality_adapter import close, compact


def main() -> None:
    """Reads until the input ends."""
    logging.disable(logging.WARNING)
    for line in sys.stdin:
        asked = json.loads(line)
        state = {"conversation_id": asked["name"], "on_request": asked["on_request"]}
        sent, _ = compact(asked["messages"], [], asked["window"], state)
        print(json.dumps(sent), flush=True)
    close()


if __name__ == "__main__":
    main()

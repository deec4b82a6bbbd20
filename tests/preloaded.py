"""What the process imports and loads that the tests' proxies are forked from; see proxy_process.py."""

import accordion.cli.main
import accordion.cli.serve  # noqa: F401
from accordion.providers.models.tokenizer import TiktokenCounter
from accordion.summaries.sentence_forms import compile_forms

TiktokenCounter().load()
compile_forms()

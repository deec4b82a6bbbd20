"""The programs of docs/sdks.md run as they are written, and are compacted."""

import json
import re
import sys
from pathlib import Path

import pytest
import replies
from client_link import CI, KEY, ROOT, ClientLink, Proxy, proxy_missing, run
from replies import Call
from test_compaction_agent_clis import FILES, SUMMARY, ReadingModel, notes
from upstream import Upstream

GUIDE = (ROOT / "docs" / "sdks.md").read_text("utf-8")
# The heading of each section with a program, and the program.
SECTION = r"^## (.+?)\n(?:(?!^## ).)*?```python\n(.*?)```"
PROGRAMS: dict[str, str] = dict(re.findall(SECTION, GUIDE, re.DOTALL | re.MULTILINE))
WINDOW = 16_000


def test_each_guide_has_one_program() -> None:
    assert list(PROGRAMS) == ["OpenAI's SDK", "Anthropic's SDK", "OpenAI Agents SDK", "LangGraph"]
    assert GUIDE.count("```python") == len(PROGRAMS)


def settings(port: int) -> str:
    """The settings of the guide, with a smaller window and the loopback provider."""
    ways = {
        "gpt-5": {"model": "openai/gpt-5", "api_base": f"http://127.0.0.1:{port}/v1"},
        "claude-sonnet-5": {"model": "anthropic/claude-sonnet-5", "api_base": f"http://127.0.0.1:{port}"},
    }
    info = {"max_input_tokens": WINDOW, "max_output_tokens": WINDOW}
    entries = [{"model_name": name, "litellm_params": way, "model_info": info} for name, way in ways.items()]
    return json.dumps({"model_list": entries, "summaries": {"writer": "extractive"}})


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_a_program_of_the_guide_finds_the_password(name: str, upstream: Upstream, tmp_path: Path) -> None:
    if missing := proxy_missing():
        (pytest.fail if CI else pytest.skip)(missing)
    for number in range(FILES):
        (tmp_path / f"notes{number}.txt").write_text(notes(number))
    (tmp_path / "agent.py").write_text(PROGRAMS[name])
    upstream.reset()
    upstream.rule = reading = ReadingModel(Call("read_file", {"path": "notes.txt"}), [])
    proxy = Proxy(upstream.port, tmp_path, settings(upstream.port))
    recorder = upstream.record_connections(proxy.port)
    link = ClientLink("through", upstream, recorder)
    environ = {
        "OPENAI_BASE_URL": link.v1,
        "OPENAI_API_KEY": KEY,
        "ANTHROPIC_BASE_URL": link.origin,
        "ANTHROPIC_API_KEY": KEY,
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
        "LANGSMITH_TRACING": "false",
    }
    try:
        printed = run([sys.executable, "agent.py"], link, environ, tmp_path)
    finally:
        upstream.call(recorder.stop())
        proxy.stop()
    assert "swordfish" in printed
    assert len(reading.asked) == FILES + 1
    last = replies.body_of(reading.asked[-1])
    assert SUMMARY in json.dumps(last)
    assert len(replies.results_in(last)) < FILES

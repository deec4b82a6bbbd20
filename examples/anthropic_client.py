"""Anthropic's SDK through the proxy: `base_url` is all that changes. Needs a running proxy and ANTHROPIC_API_KEY."""

import os

from anthropic import Anthropic

proxy = os.environ.get("ACCORDION_URL", "http://127.0.0.1:8787")
client = Anthropic(base_url=proxy)

reply = client.messages.with_raw_response.create(
    model="claude-haiku-4-5", max_tokens=20, messages=[{"role": "user", "content": "Say hello in one word."}]
)
print(reply.parse().content[0].text)
for name, value in reply.headers.items():
    if name.startswith("x-accordion-"):
        print(f"{name}: {value}")

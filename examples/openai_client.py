"""OpenAI's SDK through the proxy: `base_url` is all that changes. Needs a running proxy and OPENAI_API_KEY."""

import os

from openai import OpenAI

proxy = os.environ.get("ACCORDION_URL", "http://127.0.0.1:8787")
client = OpenAI(base_url=f"{proxy}/v1")

reply = client.chat.completions.with_raw_response.create(
    model="gpt-4o-mini", messages=[{"role": "user", "content": "Say hello in one word."}]
)
print(reply.parse().choices[0].message.content)
for name, value in reply.headers.items():
    if name.startswith("x-accordion-"):
        print(f"{name}: {value}")

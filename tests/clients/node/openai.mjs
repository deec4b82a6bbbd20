// The official OpenAI SDK for Node: every step is one use of it.
import OpenAI, { toFile } from "openai";
import { done, key, leaveAfterFirst, step, v1 } from "./common.mjs";

const api = new OpenAI({ baseURL: v1, apiKey: key, maxRetries: 0, timeout: 30_000 });
const model = "gpt-test";
const ask = (content) => [{ role: "user", content }];
const weather = {
  name: "get_weather",
  description: "The weather of a city.",
  parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
};
const text = (answer) => answer.choices[0].message.content;

await step("whole", async () => api.chat.completions.create({ model, messages: ask("Grüße 東京 🦜") }));
await step("lone_surrogate", async () => text(await api.chat.completions.create({ model, messages: ask("half \ud83e of a bird") })));
await step("streamed", async () => {
  const stream = await api.chat.completions.create({ model, messages: ask("Hi"), stream: true, stream_options: { include_usage: true } });
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return chunks;
});
await step("tools", async () => {
  const runner = api.chat.completions.runTools({
    model,
    messages: ask("Weather?"),
    tools: [{ type: "function", function: { ...weather, parse: JSON.parse, function: ({ city }) => `22 °C in ${city}` } }],
  });
  return runner.finalContent();
});
await step("streamed_tools", async () => {
  const runner = api.chat.completions.runTools({
    model,
    stream: true,
    messages: ask("Weather?"),
    tools: [{ type: "function", function: { ...weather, parse: JSON.parse, function: ({ city }) => `22 °C in ${city}` } }],
  });
  return runner.finalContent();
});
await step("response", async () => (await api.responses.create({ model, input: "Hi" })).output_text);
await step("streamed_response", async () => {
  const stream = api.responses.stream({ model, input: "Hi" });
  const kinds = [];
  for await (const event of stream) kinds.push(event.type);
  return [kinds, (await stream.finalResponse()).output_text];
});
await step("embeddings", async () => (await api.embeddings.create({ model: "text-embedding-test", input: "one" })).data);
await step("models", async () => (await api.models.list()).data);
await step("upload", async () => api.files.create({ file: await toFile(Buffer.alloc(50_000, "ä"), "notes.bin"), purpose: "user_data" }));
await step("download", async () => Buffer.from(await (await api.files.content("file-1")).arrayBuffer()).length);
await step("headers", async () => {
  const { response } = await api.chat.completions.create({ model, messages: ask("Hi") }).withResponse();
  return [...response.headers].filter(([name]) => !name.startsWith("x-accordion-"));
});
for (const status of [400, 401, 429, 500, 529]) {
  await step(`failed_${status}`, async () => api.chat.completions.create({ model, messages: ask(`FAIL ${status}`) }));
}
await step("retried", async () => text(await api.chat.completions.create({ model, messages: ask("ONCE MORE") }, { maxRetries: 1 })));
await step("cut", async () => {
  const pieces = [];
  const stream = await api.chat.completions.create({ model, messages: ask("CUT"), stream: true });
  try {
    for await (const chunk of stream) pieces.push(chunk.choices[0].delta.content);
  } catch {
    return [pieces, "failed"];
  }
  return [pieces, "no error"];
});
await step("aborted", async () => {
  const stream = await api.chat.completions.create({ model, messages: ask("HOLD"), stream: true });
  return leaveAfterFirst(stream, () => stream.controller.abort());
});
await step("timed_out", async () => api.chat.completions.create({ model, messages: ask("NEVER") }, { timeout: 500 }));
done();

// The official Anthropic SDK for Node: every step is one use of it.
import Anthropic from "@anthropic-ai/sdk";
import { done, key, leaveAfterFirst, origin, step } from "./common.mjs";

const api = new Anthropic({ baseURL: origin, apiKey: key, maxRetries: 0, timeout: 30_000 });
const model = "claude-test";
const base = (content) => ({ model, max_tokens: 100, messages: [{ role: "user", content }] });
const tools = [
  {
    name: "get_weather",
    description: "The weather of a city.",
    input_schema: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  },
];

await step("whole", async () => api.messages.create(base("Grüße 東京 🦜")));
await step("streamed", async () => {
  const events = [];
  for await (const event of await api.messages.create({ ...base("Hi"), stream: true })) events.push(event);
  return events;
});
await step("helper", async () => {
  const stream = api.messages.stream(base("Hi"));
  const pieces = [];
  stream.on("text", (piece) => pieces.push(piece));
  return [await stream.finalText(), pieces];
});
await step("tools", async () => {
  const messages = [{ role: "user", content: "Weather?" }];
  for (let turn = 0; turn < 3; turn++) {
    const answer = await api.messages.stream({ model, max_tokens: 100, messages, tools }).finalMessage();
    const uses = answer.content.filter((block) => block.type === "tool_use");
    if (!uses.length) return answer.content;
    const results = uses.map((use) => ({ type: "tool_result", tool_use_id: use.id, content: `22 °C in ${use.input.city}` }));
    messages.push({ role: "assistant", content: answer.content }, { role: "user", content: results });
  }
});
await step("counted", async () => api.messages.countTokens({ model, messages: base("Hi").messages }));
await step("batch", async () => api.messages.batches.create({ requests: [{ custom_id: "one", params: base("Hi") }] }));
await step("results", async () => {
  const ids = [];
  for await (const result of await api.messages.batches.results("msgbatch_done")) ids.push(result.custom_id);
  return ids;
});
for (const status of [400, 401, 429, 500, 529]) await step(`failed_${status}`, async () => api.messages.create(base(`FAIL ${status}`)));
await step("retried", async () => api.messages.create(base("ONCE MORE"), { maxRetries: 1 }));
await step("overloaded", async () => api.messages.stream(base("OVERLOADED")).finalText());
await step("cut", async () => api.messages.stream(base("CUT")).finalText().catch(() => "failed"));
await step("aborted", async () => {
  const stream = await api.messages.create({ ...base("HOLD"), stream: true });
  return leaveAfterFirst(stream, () => stream.controller.abort());
});
await step("timed_out", async () => api.messages.create(base("NEVER"), { timeout: 500 }));
done();

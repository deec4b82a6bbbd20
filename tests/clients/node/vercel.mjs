// The Vercel AI SDK with its OpenAI, Anthropic and OpenAI-compatible providers.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { embed, generateObject, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { done, key, origin, step, v1 } from "./common.mjs";

const openai = createOpenAI({ baseURL: v1, apiKey: key });
const models = {
  chat: openai.chat("gpt-test"),
  responses: openai.responses("gpt-test"),
  messages: createAnthropic({ baseURL: `${origin}/v1`, apiKey: key })("claude-test"),
  compatible: createOpenAICompatible({ name: "loopback", baseURL: v1, apiKey: key }).chatModel("any-model"),
};
const tools = {
  get_weather: tool({
    description: "The weather of a city.",
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => `22 °C in ${city}`,
  }),
};

for (const [kind, model] of Object.entries(models)) {
  const common = { model, maxRetries: 0 };
  await step(`${kind}_text`, async () => (await generateText({ ...common, prompt: "Grüße 東京 🦜" })).text);
  await step(`${kind}_stream`, async () => {
    const pieces = [];
    for await (const piece of streamText({ ...common, prompt: "Hi" }).textStream) pieces.push(piece);
    return pieces;
  });
  await step(`${kind}_tools`, async () => {
    const answer = await generateText({ ...common, prompt: "Weather?", tools, stopWhen: stepCountIs(4) });
    return [answer.text, answer.steps.length];
  });
  await step(`${kind}_streamed_tools`, async () => {
    const answer = streamText({ ...common, prompt: "Weather?", tools, stopWhen: stepCountIs(4) });
    return [await answer.text, (await answer.steps).length, await answer.finishReason];
  });
  await step(`${kind}_failed`, async () => generateText({ ...common, prompt: "FAIL 429" }));
  await step(`${kind}_retried`, async () => (await generateText({ ...common, maxRetries: 1, prompt: "ONCE MORE" })).text);
  await step(`${kind}_aborted`, async () => {
    const leave = new AbortController();
    const answer = streamText({ ...common, prompt: "HOLD", abortSignal: leave.signal, onError: () => {} });
    for await (const _ of answer.textStream) leave.abort();
    return "left";
  });
}
const schema = z.object({ city: z.string(), days: z.number() });
for (const kind of ["chat", "responses"]) {
  await step(`${kind}_object`, async () => (await generateObject({ model: models[kind], schema, prompt: "Plan", maxRetries: 0 })).object);
}
await step("embedding", async () => (await embed({ model: openai.textEmbeddingModel("text-embedding-test"), value: "one" })).embedding);
done();

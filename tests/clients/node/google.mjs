// Google's SDK for JavaScript: every step is one use of it.
import { GoogleGenAI } from "@google/genai";
import { done, key, leaveAfterFirst, origin, step } from "./common.mjs";

const api = new GoogleGenAI({ apiKey: key, httpOptions: { baseUrl: origin, timeout: 30_000 } });
const model = "gemini-test";
const weather = {
  name: "get_weather",
  description: "The weather of a city.",
  parametersJsonSchema: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
};
const plain = ({ sdkHttpResponse: _, ...answer }) => answer;

await step("whole", async () => plain(await api.models.generateContent({ model, contents: "Grüße 東京 🦜" })));
await step("streamed", async () => {
  const chunks = [];
  for await (const chunk of await api.models.generateContentStream({ model, contents: "Hi" })) chunks.push(chunk.text);
  return chunks;
});
for (const streams of [false, true]) {
  await step(streams ? "streamed_tools" : "tools", async () => {
    const chat = api.chats.create({ model, config: { tools: [{ functionDeclarations: [weather] }] } });
    let message = "Weather?";
    for (;;) {
      const calls = [], texts = [];
      const answers = streams ? await chat.sendMessageStream({ message }) : [await chat.sendMessage({ message })];
      for await (const answer of answers) {
        calls.push(...(answer.functionCalls ?? []));
        texts.push(...(answer.candidates[0].content.parts ?? []).map((part) => part.text ?? ""));
      }
      if (calls.length === 0) return texts.join("");
      message = calls.map(({ id, name, args }) => ({ functionResponse: { id, name, response: { output: `22 °C in ${args.city}` } } }));
    }
  });
}
await step("counted", async () => (await api.models.countTokens({ model, contents: "Hi" })).totalTokens);
for (const status of [400, 401, 429, 500]) {
  await step(`failed_${status}`, async () => api.models.generateContent({ model, contents: `FAIL ${status}` }));
}
await step("cut", async () => {
  try {
    for await (const _ of await api.models.generateContentStream({ model, contents: "CUT" }));
  } catch {
    return "failed";
  }
  return "no error";
});
await step("aborted", async () => {
  const leaving = new AbortController();
  const config = { abortSignal: leaving.signal };
  const stream = await api.models.generateContentStream({ model, contents: "HOLD", config });
  return leaveAfterFirst(stream, () => leaving.abort());
});
done();

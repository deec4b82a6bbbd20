// Shared by the client scripts: where the provider is, and how what was seen is printed.
export const v1 = process.env.BASE_V1;
export const origin = process.env.BASE_ORIGIN;
export const key = process.env.TEST_KEY;
export const seen = {};

// Keeps what a step returned, or the error that it ended with.
export async function step(name, work) {
  try {
    seen[name] = await work();
  } catch (error) {
    seen[name] = { error: error.name ?? error.constructor.name, type: error.constructor.name, status: error.status ?? error.statusCode };
  }
}

export function done() {
  console.log(JSON.stringify(seen));
}

// Asks for what keeps the provider waiting, reads one piece of the answer, and leaves.
export async function leaveAfterFirst(stream, abort) {
  for await (const _ of stream) {
    abort();
    return "left";
  }
}

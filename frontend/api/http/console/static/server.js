// Server: requests to the server this page came from, with the key if there is one, and streams of events from it.

const KEY = "tetrad-key";

export const key = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (value) => (value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY)),
};

/** An answer that is an error; status 0: there was none. */
export class ServerError extends Error {
  constructor(message, status, code = "") {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** Return the response to a request; throw ServerError if it is an error. Paths are relative to the page. */
export async function ask(path, { body, signal } = {}) {
  const headers = {};
  if (key.get()) headers.authorization = `Bearer ${key.get()}`;
  if (body) headers["content-type"] = "application/json";
  const init = { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), signal, cache: "no-store" };
  let response;
  try {
    response = await fetch(path, init);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("The server does not answer.", 0);
  }
  if (!response.ok) throw await errorOf(response);
  return response;
}

/** Yield the data of each event of a response; throw ServerError for one that is an error, or if the stream breaks. */
export async function* events(response) {
  let text = "";
  for await (const piece of pieces(response.body.pipeThrough(new TextDecoderStream()))) {
    text += piece;
    const found = text.split("\n\n");
    text = found.pop();
    for (const event of found) {
      const data = event.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trim()).join("\n");
      if (!data || data === "[DONE]") continue;
      const value = JSON.parse(data);
      if (value.error) throw new ServerError(value.error.message, response.status, value.error.code);
      yield value;
    }
  }
}

async function* pieces(stream) {
  const reader = stream.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield value;
    }
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("The connection broke.", 0);
  } finally {
    reader.cancel().catch(() => {});
  }
}

async function errorOf(response) {
  const body = await response.json().catch(() => null);
  const error = body?.error ?? {};
  return new ServerError(error.message ?? `The server answered with ${response.status}.`, response.status, error.code);
}

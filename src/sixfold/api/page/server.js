// Talking to the server: the key, errors in the server's words, events of a stream.

const KEY = "sixfold.key";

/** An answer that is no answer. `status` 0: the server could not be reached. */
export class ServerError extends Error {
  constructor(message, { status = 0, code = null, param = null, retryMs = null } = {}) {
    super(message);
    Object.assign(this, { status, code, param, retryMs });
  }
}

let keyNow = null; // where the browser keeps nothing for this page, the key lives as long as the page

export function getKey() {
  try {
    return sessionStorage.getItem(KEY) ?? keyNow;
  } catch {
    return keyNow;
  }
}

export function setKey(key) {
  keyNow = key || null;
  try {
    if (key) sessionStorage.setItem(KEY, key);
    else sessionStorage.removeItem(KEY);
  } catch {
    // see above
  }
}

let askForKey = async () => false;

/** Who asks the user for a key; resolves to whether there is one now. */
export function onKeyNeeded(ask) {
  askForKey = ask;
}

/** A response whose status is 200. Asks for a key where one is wanted, and for another where it is not the right one.
 *  Throws ServerError, or AbortError where `signal` was raised. */
export async function call(path, { method = "GET", body = null, signal = null, ask = true } = {}) {
  const headers = {};
  const sent = getKey();
  if (sent) headers.Authorization = `Bearer ${sent}`;
  if (body !== null) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(path, { method, headers, signal, cache: "no-store", body: body && JSON.stringify(body) });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("the server cannot be reached");
  }
  if (response.ok) return response;
  const error = await refusal(response);
  if (ask && (error.status === 401 || error.code === "admin_only") && (await askForKey(error, sent))) {
    return call(path, { method, body, signal });
  }
  throw error;
}

/** The server speaks to programs of their headers; this is for whoever sits in front of the page. */
const WORDS = {
  missing_api_key: "this server asks for a key",
  invalid_api_key: "the key is not valid",
  admin_only: "this view needs an admin key",
};

async function refusal(response) {
  let said = {};
  try {
    said = (await response.json()).error ?? {};
  } catch {
    // not JSON, or cut off: the status must do
  }
  return new ServerError(WORDS[said.code] ?? said.message ?? `the server answered ${response.status}`, {
    status: response.status,
    code: said.code,
    param: said.param,
    retryMs: Number(response.headers.get("retry-after-ms")) || null,
  });
}

/** The data of each event of a stream. `onBytes` is called whenever anything arrives. */
export async function* events(response, onBytes = () => {}) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      let piece;
      try {
        piece = await reader.read();
      } catch (error) {
        if (error.name === "AbortError") throw error;
        throw new ServerError("the connection was lost");
      }
      if (piece.done) return;
      onBytes();
      rest += piece.value;
      let end;
      while ((end = rest.indexOf("\n\n")) >= 0) {
        const block = rest.slice(0, end);
        rest = rest.slice(end + 2);
        if (block.startsWith("data: ")) yield block.slice(6);
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** How long to wait before try number `n` (from 0), in ms. */
export function backoff(n) {
  return Math.min(5000, 500 * 1.7 ** n);
}

/** Resolves after `ms`, or at once when `signal` is raised. */
export function pause(ms, signal = null) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      resolve();
    });
  });
}

/** What the server says of itself: "" when it takes requests, else a sentence. Throws where nobody answers. */
export async function notReady() {
  const response = await fetch("/readyz", { cache: "no-store" });
  if (response.ok) return "";
  return (await refusal(response)).message;
}

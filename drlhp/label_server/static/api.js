// Talking to the server: JSON in, JSON out, and three kinds of failure.

const SECONDS = 10; // after which a request counts as lost

/** What to do where the server does not know this browser any more. */
export const LOGGED_OUT = "Please open the printed link again.";

/** The server said no; `body` is its reply. */
export class Refused extends Error {
  constructor(status, body) {
    super(body.error || `status ${status}`);
    this.reason = this.message;
    this.status = status;
    this.body = body;
  }
}

/** Nobody answered, or the server could not do it now and gave this reason: worth trying again. */
export class Unreachable extends Error {
  constructor(message, reason = "") {
    super(message);
    this.reason = reason;
  }
}

export async function call(method, path, body) {
  let response, reply;
  try {
    response = await fetch(path, {
      method,
      headers: body === undefined ? {} : { "Content-Type": "application/json" },
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: AbortSignal.timeout(SECONDS * 1000),
      cache: "no-store",
    });
    reply = await response.json();
  } catch (error) {
    throw new Unreachable(error.message);
  }
  if (response.ok) return reply;
  if (response.status >= 500 || response.status === 408 || response.status === 429)
    throw new Unreachable(reply.error || "the server is in trouble", reply.error);
  throw new Refused(response.status, reply);
}

/** 128 random bits; crypto.randomUUID is there on encrypted pages only. */
export function randomId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (b) => b.toString(16).padStart(2, "0")).join("");
}

/** What this browser remembers; without leave to do so, what this page remembers. */
const memory = new Map();
export const store = {
  get(key) {
    try {
      return localStorage.getItem(key) ?? memory.get(key) ?? null;
    } catch {
      return memory.get(key) ?? null;
    }
  },
  set(key, value) {
    try {
      localStorage.setItem(key, value);
    } catch {
      memory.set(key, value);
    }
  },
  remove(key) {
    memory.delete(key);
    try {
      localStorage.removeItem(key);
    } catch {}
  },
  /** Keys that go on from the prefix without another slash, which a nickname may hold: they are of someone else. */
  keys(prefix) {
    let kept = [];
    try {
      kept = Object.keys(localStorage);
    } catch {}
    return [...new Set([...kept, ...memory.keys()])].filter((key) => key.startsWith(prefix) && !key.includes("/", prefix.length)).sort();
  },
};

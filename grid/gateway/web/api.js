// Requests of the pages to the gateway: single requests, the event stream, and the output of jobs.

import { heardDate } from "./clock.js";
import { loginHeaders } from "./session.js";

export class Problem extends Error {
  constructor(status, document) {
    super(document.detail || document.title || `the gateway answered with ${status}`);
    this.status = status;
    this.kind = (document.type || "").split(":").pop();
    this.retryAfter = document.retry_after_s;
  }
}

const listeners = new Set();
let isOut = false;

/** Call `listener` when a request is refused because the user is not, or no longer, logged in. */
export function onLoggedOut(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** Send a request and return the answer. With `isFirst` nobody was logged in before, so a refusal is not a logout. */
export async function ask(method, path, body, { signal, isFirst } = {}) {
  const headers = { Accept: "application/json", ...loginHeaders() };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const began = performance.now();
  let answer;
  try {
    answer = await fetch(path, {
      method, headers, signal, credentials: "same-origin", cache: "no-store",
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, { detail: "The gateway does not answer. This page keeps retrying." });
  }
  heardDate(answer.headers.get("Date"), performance.now() - began);
  const text = await answer.text();
  let document = {};
  try {
    document = text ? JSON.parse(text) : {};
  } catch {
    document = { detail: text.slice(0, 200) };
  }
  if (answer.ok) {
    isOut = false;
    return document;
  }
  if (answer.status === 401 && path !== "/v1/login" && !isOut && !isFirst) {
    isOut = true;
    listeners.forEach((listener) => listener());
  }
  throw new Problem(answer.status, document);
}

export const get = (path, query = {}, options = {}) => ask("GET", path + asked(query), undefined, options);
export const post = (path, body, options = {}) => ask("POST", path, body, options);

function asked(query) {
  const pairs = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    for (const item of Array.isArray(value) ? value : [value]) {
      if (item !== undefined && item !== null && item !== "") pairs.append(name, item);
    }
  }
  const text = pairs.toString();
  return text ? `?${text}` : "";
}

/** Fetch up to `most` jobs, page by page; `each` is called with every page as it arrives. */
export async function jobsOf(query, { most = 1000, each = () => {}, signal } = {}) {
  let below;
  let n = 0;
  do {
    const page = await get("/v1/jobs", { ...query, below, limit: Math.min(1000, most - n) }, { signal });
    n += page.jobs.length;
    below = page.below;
    each(page.jobs, below === null || below === undefined);
  } while (below && n < most);
}

/**
 * Watch the events of jobs. `onEvent` is called with each event, `onState` with "live" or "away".
 * After an interruption the stream resumes after the last event received, so no event is lost.
 */
export function watch(onEvent, onState) {
  const stop = new AbortController();
  let last = null;
  let pause = 500;
  let timer = 0;

  async function open() {
    try {
      const headers = { Accept: "text/event-stream", ...loginHeaders() };
      const answer = await fetch("/v1/events" + asked({ after: last }), {
        headers, signal: stop.signal, credentials: "same-origin", cache: "no-store",
      });
      if (answer.ok) {
        pause = 500;
        onState("live");
        for await (const message of messages(answer.body)) {
          if (message.event === "end") {
            last = JSON.parse(message.data).after ?? last;
            break;
          }
          last = message.id ?? last;
          if (message.data) onEvent(JSON.parse(message.data));
        }
      }
    } catch (error) {
      if (stop.signal.aborted) return;
      if (!(error instanceof TypeError)) console.error(error); // an error of ours, not of the network
    }
    again();
  }

  function again() {
    if (stop.signal.aborted) return;
    onState("away");
    clearTimeout(timer);
    timer = setTimeout(async () => {
      try {
        await get("/v1/whoami"); // stops retrying if the user is no longer logged in
        open();
      } catch (error) {
        if (error.status !== 401) again();
      }
    }, pause);
    pause = Math.min(pause * 2, 10_000);
  }

  open();
  return () => {
    stop.abort();
    clearTimeout(timer);
  };
}

/** Parse server-sent events, with at most one field of each kind per event; an `EventSource` cannot send our header. */
async function* messages(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        yield Object.fromEntries(block.split("\n").map((line) => {
          const colon = line.indexOf(":");
          return [line.slice(0, colon), line.slice(colon + 1).trimStart()];
        }));
      }
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}

/** Follow the output of a rank: `write` gets each part as bytes; resolves when the job has ended. */
export async function follow(jobId, { rank = 0, stream = "out", offset = 0, signal, write }) {
  const path = `/v1/jobs/${jobId}/output` + asked({ rank, stream, offset, follow: true });
  const headers = { Accept: "application/octet-stream", ...loginHeaders() };
  const answer = await fetch(path, { headers, signal, credentials: "same-origin", cache: "no-store" });
  if (!answer.ok) throw new Problem(answer.status, await answer.json().catch(() => ({})));
  const reader = answer.body.getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    write(value);
  }
}

// What the pages ask of the gateway: requests, the stream of events, and who is logged in.

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

/** Call `listener` when a request is refused because nobody is logged in (any more). */
export function onLoggedOut(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** Make a request; `isFirst`: nobody was logged in before, so that a refusal is no logout. */
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
    throw new Problem(0, { detail: "The gateway does not answer. This page tries again by itself." });
  }
  heardDate(answer.headers.get("Date"), performance.now() - began);
  const text = await answer.text();
  let told = {};
  try {
    told = text ? JSON.parse(text) : {};
  } catch {
    told = { detail: text.slice(0, 200) };
  }
  if (answer.ok) {
    isOut = false;
    return told;
  }
  if (answer.status === 401 && path !== "/v1/login" && !isOut && !isFirst) {
    isOut = true;
    listeners.forEach((listener) => listener());
  }
  throw new Problem(answer.status, told);
}

export const get = (path, query = {}, options = {}) => ask("GET", path + asked(query), undefined, options);
export const post = (path, body, options = {}) => ask("POST", path, body, options);

function asked(query) {
  const pairs = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== undefined && one !== null && one !== "") pairs.append(name, one);
    }
  }
  const text = pairs.toString();
  return text ? `?${text}` : "";
}

/** All that is on several pages of jobs, up to `most`; `each` is called with every page as it comes. */
export async function jobsOf(query, { most = 1000, each = () => {}, signal } = {}) {
  let below;
  let found = 0;
  do {
    const page = await get("/v1/jobs", { ...query, below, limit: Math.min(1000, most - found) }, { signal });
    found += page.jobs.length;
    below = page.below;
    each(page.jobs, below === null || below === undefined);
  } while (below && found < most);
}

/**
 * Watch what happens to jobs. `told` is called with each event, `state` with "live" or "away".
 * A stream that is cut off goes on after the last event that was seen; what was missed is told first.
 */
export function watch(told, state) {
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
        state("live");
        for await (const message of messages(answer.body)) {
          if (message.event === "end") {
            last = JSON.parse(message.data).after ?? last;
            break;
          }
          last = message.id ?? last;
          if (message.data) told(JSON.parse(message.data));
        }
      }
    } catch (error) {
      if (stop.signal.aborted) return;
      if (!(error instanceof TypeError)) console.error(error); // and not the network's
    }
    again();
  }

  function again() {
    if (stop.signal.aborted) return;
    state("away");
    clearTimeout(timer);
    timer = setTimeout(async () => {
      try {
        await get("/v1/whoami"); // who is not logged in any more is told so, and does not knock forever
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

/** The server-sent events of a body, which has one field of a kind in each: an `EventSource` cannot send our header. */
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

/** Follow what a rank writes: `write` gets each part as bytes; resolves when the job has ended. */
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

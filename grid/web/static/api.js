// What the pages ask of the gateway: requests, the stream of events, and who is logged in.

import { heardDate } from "./clock.js";

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

export async function ask(method, path, body, { signal } = {}) {
  const headers = { Accept: "application/json" };
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
  if (answer.status === 401 && path !== "/v1/login" && !isOut) {
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
  let source = null;
  let last = null;
  let pause = 500;
  let timer = 0;
  let stopped = false;

  function open() {
    source = new EventSource("/v1/events" + asked({ after: last }));
    source.onopen = () => {
      pause = 500;
      state("live");
    };
    source.onmessage = (message) => {
      last = message.lastEventId || last;
      told(JSON.parse(message.data));
    };
    source.addEventListener("end", (message) => {
      last = JSON.parse(message.data).after ?? last;
      again();
    });
    source.onerror = again;
  }

  function again() {
    if (stopped) return;
    source.close();
    state("away");
    clearTimeout(timer);
    timer = setTimeout(async () => {
      try {
        await get("/v1/whoami"); // who is not logged in any more is told so, and does not knock for ever
        open();
      } catch (error) {
        if (error.status !== 401) again();
      }
    }, pause);
    pause = Math.min(pause * 2, 10_000);
  }

  open();
  return () => {
    stopped = true;
    clearTimeout(timer);
    source.close();
  };
}

/** Follow what a rank writes: `write` gets each part as bytes; resolves when the job has ended. */
export async function follow(jobId, { rank = 0, stream = "out", offset = 0, signal, write }) {
  const path = `/v1/jobs/${jobId}/output` + asked({ rank, stream, offset, follow: true });
  const answer = await fetch(path, { headers: { Accept: "application/octet-stream" }, signal, cache: "no-store" });
  if (!answer.ok) throw new Problem(answer.status, await answer.json().catch(() => ({})));
  const reader = answer.body.getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    write(value);
  }
}

// Components shared by all pages: states, times, tables, and data that refreshes itself.

import { html, useCallback, useEffect, useRef, useState } from "./vendor/preact.js";
import { Problem } from "./api.js";
import { gridAhead, gridNow, onClock } from "./clock.js";
import { absolute, when } from "./text.js";

export { html, useEffect, useRef, useState };

const listeners = new Set();

/** Notify all components of an event of a job. */
export const notify = (event) => listeners.forEach((listener) => listener(event));

/** Call `onEvent` with each event while a component is on the page. */
function useEvents(onEvent) {
  const latest = useRef(onEvent);
  latest.current = onEvent;
  useEffect(() => {
    const listener = (event) => latest.current(event);
    listeners.add(listener);
    return () => listeners.delete(listener);
  }, []);
}

/**
 * Data that is reloaded after an event for which `concerns(event)` is true, at least every `every` ms, and never while
 * the page is hidden. If the gateway does not answer, the last data stays, and `problem` is set.
 */
export function useFresh(load, inputs, { every = 10_000, gap = 1000, concerns = () => true } = {}) {
  const [state, set] = useState({ data: null, problem: null });
  const run = useRef(() => {});
  useEffect(() => {
    const stop = new AbortController();
    let timer = 0;
    let loading = false;
    let begun = 0;
    const later = (ms) => {
      clearTimeout(timer);
      timer = setTimeout(go, ms);
    };
    async function go() {
      if (document.hidden) return later(every);
      if (loading) return later(gap);
      [loading, begun] = [true, Date.now()];
      let pause = every;
      try {
        const data = await load(stop.signal);
        if (!stop.signal.aborted) set({ data, problem: null });
      } catch (error) {
        if (stop.signal.aborted) return undefined;
        if (!(error instanceof Problem)) throw error;
        pause = Math.max(1000, (error.retryAfter ?? 2) * 1000);
        set((before) => ({ data: error.status === 404 ? null : before.data, problem: error }));
      } finally {
        loading = false;
      }
      return stop.signal.aborted ? undefined : later(pause);
    }
    // At most one request per `gap`, even with many events.
    run.current = () => later(Math.max(0, begun + gap - Date.now()));
    const shown = () => document.hidden || run.current();
    document.addEventListener("visibilitychange", shown);
    go();
    return () => {
      stop.abort();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", shown);
    };
  }, inputs);
  useEvents((event) => concerns(event) && run.current());
  return { ...state, reload: useCallback(() => run.current(), []) };
}

/** The current time on the grid's clock, updated every `every` ms. */
export function useNow(every = 1000) {
  const [now, set] = useState(gridNow());
  useEffect(() => {
    const look = () => set(gridNow());
    const timer = setInterval(look, every);
    const stop = onClock(look);
    return () => {
      clearInterval(timer);
      stop();
    };
  }, [every]);
  return now;
}

/** How far the grid's clock is ahead of this computer's, in milliseconds; 0 while they agree. */
export function useAhead() {
  const [ahead, set] = useState(gridAhead());
  useEffect(() => onClock(() => set(gridAhead())), []);
  return ahead;
}

const SIGNS = {
  waiting: "○", held: "‖", starting: "◔", running: "▶", ending: "◕",
  finished: "✓", failed: "✕", limit: "⧗", cancelled: "⊘", refused: "⊘", ended: "■",
};

/** The state of a job as a sign, a word and a colour, so that one of them is enough. */
export const State = ({ state }) =>
  html`<span class="state s-${state}"><span aria-hidden="true">${SIGNS[state] ?? "·"}</span> ${state}</span>`;

export const Time = ({ ms, now = gridNow() }) =>
  ms === null || ms === undefined
    ? html`<span>–</span>`
    : html`<time datetime=${absolute(ms)} title=${absolute(ms)}>${when(ms, now)}</time>`;

export const JobLink = ({ id }) => html`<a href="#/job/${id}">${id}</a>`;

/** A problem as a message; nothing without one. */
export const Trouble = ({ problem }) =>
  problem ? html`<p class="trouble" role="status">${problem.message}</p>` : null;

export const Empty = ({ children }) => html`<p class="empty">${children}</p>`;

/** A table that scrolls on its own on narrow screens. */
export function Table({ label, columns, children }) {
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${label}>
    <table>
      <thead><tr>${columns.map((column) => html`<th scope="col">${column}</th>`)}</tr></thead>
      <tbody>${children}</tbody>
    </table>
  </div>`;
}

/** A dialog that asks for confirmation; `text` describes the consequences. */
export function Confirm({ text, action, onYes, onNo }) {
  const dialog = useRef(null);
  useEffect(() => dialog.current.showModal(), []);
  return html`<dialog ref=${dialog} onCancel=${onNo} aria-label=${action}>
    <p>${text}</p>
    <p class="buttons">
      <button type="button" class="danger" onClick=${onYes}>${action}</button>
      <button type="button" onClick=${onNo} autofocus>Keep</button>
    </p>
  </dialog>`;
}

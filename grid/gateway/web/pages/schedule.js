// The schedule of all sites: past, running and expected jobs. Zoom and pan, point for details, click to open a job.

import { get } from "../api.js";
import { gridNow } from "../clock.js";
import { coloursOfSheet, isExpected, KEPT, Look, Painting, Schedule, View } from "../gantt.js";
import { count, places, span, when } from "../text.js";
import { html, JobLink, State, Table, Time, Trouble, useEffect, useFresh, useNow, useRef, useState } from "../ui.js";

const MOST_JOBS = 100_000;
const HOUR = 3_600_000;
const SPANS = [["the last hour", HOUR], ["the last day", 24 * HOUR], ["the last week", 168 * HOUR], ["all", null]];

async function load(since, signal) {
  const [{ sites }, plan] = await Promise.all([
    get("/v1/sites", {}, { signal }),
    get("/v1/plan", { limit: 1000 }, { signal }).catch((error) => {
      if (error.status === 422) return { jobs: [] }; // the gateway of a single site has no plan of the grid
      throw error;
    }),
  ]);
  const jobs = new Map(plan.jobs.map((job) => [job[0], job]));
  let below;
  do {
    const part = await get("/v1/schedule", { since_ms: since, below }, { signal });
    for (const job of part.jobs) if (job[5] !== null) jobs.set(job[0], job);
    below = part.below;
  } while (below && jobs.size < MOST_JOBS);
  const kept = sites.flatMap((site) => site.kept.map(({ kind, number, nodes, start_ms: start, end_ms: end }) =>
    [number, "", "", kind, start, start, end, [[site.name, nodes]]]));
  return new Schedule(sites.map((site) => [site.name, site.nodes]), [...jobs.values(), ...kept]);
}

/** The label of a rectangle: a job, a reservation, or nodes under a lease. */
function labelOf([id, , , state]) {
  if (state === "reservation") return `Reservation ${id}`;
  return state === "lease" ? `Kept until the agreed start of ${id ? `job ${id}` : "another user’s job"}` : `Job ${id}`;
}

function Tip({ job, x, y, now }) {
  const [, user, name, state, , start, end, where] = job;
  return html`<div class="tip" style=${{ left: `${x + 12}px`, top: `${y + 12}px` }}>
    <strong>${labelOf(job)}</strong> ${name && html`<span dir="auto">${name}</span>`}<br />
    ${user && html`<span dir="auto">${user}</span>, `}${KEPT.includes(state) ? "" : html`${isExpected(job, now) ? "expected" : state}<br />`}
    ${places(where)}<br />${when(start, now)} to ${when(end, now)}, ${span(end - start)}</div>`;
}

/** The canvas, with the actions of mouse and keys. */
function Gantt({ schedule, now, open }) {
  const canvas = useRef(null);
  const [tip, point] = useState(null);
  const look = useRef(new Look());
  const paint = useRef(() => {});
  const painting = useRef(null);

  /** Show the whole schedule, at least up to now. */
  function fit() {
    const to = Math.max(schedule.finish, now);
    const margin = Math.max(1000, (to - schedule.begin) * 0.02);
    look.current.show(schedule.begin - margin, to + margin, false);
  }

  useEffect(() => {
    if (!look.current.moved) fit();
    let frame = 0;
    const element = canvas.current;
    const context = element.getContext("2d", { alpha: false });
    painting.current ??= new Painting(context);
    let shades = coloursOfSheet();
    function go() {
      frame = 0;
      const { clientWidth: width, clientHeight: height } = element;
      const ratio = devicePixelRatio || 1;
      if (element.width !== Math.round(width * ratio) || element.height !== Math.round(height * ratio)) {
        [element.width, element.height] = [Math.round(width * ratio), Math.round(height * ratio)];
      }
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      const view = new View(schedule, look.current.from, look.current.to, width, height, ratio);
      look.current.view = view;
      painting.current.draw(view, shades, now, look.current.chosen ?? -1);
      element.dataset.drawn = painting.current.drawn;
    }
    paint.current = () => { frame ||= requestAnimationFrame(go); };
    const themed = () => { shades = coloursOfSheet(); paint.current(); };
    const sized = new ResizeObserver(() => paint.current());
    sized.observe(element);
    addEventListener("themechange", themed);
    const dark = matchMedia("(prefers-color-scheme: dark)");
    dark.addEventListener("change", themed);
    paint.current();
    return () => {
      cancelAnimationFrame(frame);
      sized.disconnect();
      removeEventListener("themechange", themed);
      dark.removeEventListener("change", themed);
    };
  }, [schedule, now]);

  useEffect(() => {
    const element = canvas.current;
    const wheel = (event) => {
      event.preventDefault();
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) look.current.pan(event.deltaX / element.clientWidth);
      else look.current.zoom(Math.exp(event.deltaY * 0.0015), event.offsetX / element.clientWidth);
      paint.current();
    };
    element.addEventListener("wheel", wheel, { passive: false });
    return () => element.removeEventListener("wheel", wheel);
  }, []);

  const drag = useRef(null);
  function moved(event) {
    const { offsetX: x, offsetY: y } = event;
    if (drag.current) {
      look.current.pan((drag.current.x - x) / canvas.current.clientWidth);
      paint.current();
      drag.current.far += Math.abs(drag.current.x - x);
      drag.current.x = x;
      return;
    }
    const { view } = look.current;
    const at = view.at(x, y);
    look.current.chosen = at < 0 ? -1 : view.schedule.job[at];
    point(at < 0 ? null : { job: view.schedule.jobs[look.current.chosen], x: Math.min(x, view.width - 200), y });
    paint.current();
  }
  function down(event) {
    drag.current = { x: event.offsetX, far: 0 };
    canvas.current.setPointerCapture(event.pointerId);
  }
  function up(event) {
    const clicked = drag.current && drag.current.far < 4;
    drag.current = null;
    if (!clicked) return;
    const at = look.current.view.at(event.offsetX, event.offsetY);
    const job = at < 0 ? null : look.current.view.schedule.jobs[look.current.view.schedule.job[at]];
    if (job && job[0] && job[3] !== "reservation") open(job[0]);
  }
  function key(event) {
    if (event.key === "Home") fit();
    else if (!look.current.press(event.key)) return;
    event.preventDefault();
    paint.current();
  }

  return html`<div class="gantt">
    <canvas ref=${canvas} tabindex="0" role="img" onPointerMove=${moved} onPointerDown=${down} onPointerUp=${up}
      onPointerLeave=${() => point(null)} onKeyDown=${key}
      aria-label="${count(schedule.jobs.length, "job")} on ${count(schedule.sites.length, "site")} over time; arrow keys move, plus and minus zoom; the table below lists them"></canvas>
    ${tip && html`<${Tip} ...${tip} now=${now} />`}
  </div>`;
}

function InWords({ schedule, now }) {
  const last = schedule.jobs.slice(-200).reverse();
  return html`<details><summary>As a table (the last ${last.length})</summary>
    <${Table} label="The schedule" columns=${["Job", "State", "Where", "From", "To"]}>
      ${last.map((job) => html`<tr key=${job[3] + job[0]}><td>${KEPT.includes(job[3]) ? labelOf(job) : html`<${JobLink} id=${job[0]} />`}</td>
        <td>${KEPT.includes(job[3]) ? job[3] : html`<${State} state=${job[3]} />${isExpected(job, now) ? " (expected)" : ""}`}</td><td>${places(job[7])}</td>
        <td><${Time} ms=${job[5]} /></td><td><${Time} ms=${job[6]} /></td></tr>`)}
    <//></details>`;
}

export function SchedulePage() {
  const [back, look] = useState(24 * HOUR);
  const now = useNow(5000);
  const fetch = (signal) => load(back === null ? undefined : gridNow() - back, signal);
  const { data, problem } = useFresh(fetch, [back], { every: 15_000, gap: 3000 });
  return html`<h1>Schedule</h1><${Trouble} problem=${problem} />
    <form class="filters"><label>From <select value=${String(back)}
        onChange=${(event) => look(event.target.value === "null" ? null : Number(event.target.value))}>
      ${SPANS.map(([text, ms]) => html`<option value=${String(ms)}>${text}</option>`)}</select></label>
      <span class="hint">Scroll to zoom, drag to move, click to open a job. Pale jobs are expected; striped nodes are reserved or kept under a lease.
        Each job is drawn on the lowest free nodes, which need not be its real ones.</span></form>
    ${data && html`<${Gantt} schedule=${data} now=${now} open=${(id) => { location.hash = `#/job/${id}`; }} />
      <${InWords} schedule=${data} now=${now} />`}`;
}

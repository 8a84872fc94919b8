// The resource use of a job: totals, and processors and memory over time, as charts and as a table.

import { get } from "../api.js";
import { bytes, count, span } from "../text.js";
import { html, Table, Time, useFresh } from "../ui.js";

const MOST_STEPS = 60;
const [WIDE, TALL] = [600, 90];

/** The processor time that a node task had used by an instant, interpolated linearly between measurements. */
function cpuBy(piece, instant) {
  let [before, used] = [piece.start_ms, 0];
  for (const [at, cpu] of piece.points) {
    if (at >= instant) return used + ((cpu - used) * Math.max(0, instant - before)) / Math.max(1, at - before);
    [before, used] = [at, cpu];
  }
  return used;
}

/** The largest memory use of a node task measured in a time span. */
function memoryIn(piece, from, to) {
  const last = piece.points.findIndex(([at]) => at >= to);
  const seen = piece.points.slice(0, last < 0 ? undefined : last + 1).filter(([at]) => at > from);
  return Math.max(0, ...seen.map(([, , memory]) => memory));
}

/** The use of all node tasks together, in steps: the end of each step, its mean number of busy processors, its most memory. */
function stepsOf(pieces) {
  const begin = Math.min(...pieces.map((piece) => piece.start_ms));
  const end = Math.max(...pieces.map((piece) => piece.points.at(-1)?.[0] ?? piece.start_ms));
  const instants = new Set(pieces.flatMap((piece) => piece.points.map(([at]) => at)));
  const own = [...instants].sort((one, other) => one - other);
  const steps = Math.min(MOST_STEPS, Math.ceil((end - begin) / 1000));
  const untils = pieces.length === 1 ? own : Array.from({ length: steps }, (_, step) => begin + ((end - begin) * (step + 1)) / steps);
  let from = begin;
  return untils.filter((until) => until > begin).map((until) => {
    const cpu = pieces.reduce((sum, piece) => sum + cpuBy(piece, until) - cpuBy(piece, from), 0);
    const memory = pieces.reduce((sum, piece) => sum + memoryIn(piece, from, until), 0);
    const step = { from, until, processors: (1000 * cpu) / (until - from), memory };
    from = until;
    return step;
  });
}

/** A chart of one figure over time, with its largest value as text. */
function Chart({ title, steps, of, words }) {
  const [begin, end] = [steps[0].from, steps.at(-1).until];
  const most = Math.max(...steps.map(of), 1e-9);
  const x = (instant) => ((instant - begin) / (end - begin)) * WIDE;
  const y = (value) => TALL - (value / most) * (TALL - 4);
  const line = steps.map((step) => `H${x(step.from).toFixed(1)}V${y(of(step)).toFixed(1)}H${x(step.until).toFixed(1)}`).join("");
  const description = `${title}: at most ${words(most)}, at the end ${words(of(steps.at(-1)))}, over ${span(end - begin)}`;
  return html`<figure class="chart"><figcaption>${title} <small>at most ${words(most)}</small></figcaption>
    <svg viewBox="0 0 ${WIDE} ${TALL}" preserveAspectRatio="none" role="img" aria-label=${description}>
      <path d=${`M0,${TALL}${line}V${TALL}Z`} /></svg>
    <p class="ends"><small><${Time} ms=${begin} /></small><small><${Time} ms=${end} /></small></p></figure>`;
}

const PROCESSORS = (value) => count(Math.round(value * 100) / 100, "processor");

/** The ranks on a machine, as text. */
const whereRanks = ({ first_rank: first, last_rank: last, host, site }) =>
  `${first === last ? `Rank ${first}` : `Ranks ${first} to ${last}`} on ${host}${site ? ` at ${site}` : ""}`;

function OverTime({ usage }) {
  const steps = stepsOf(usage.pieces);
  if (!steps.length) return null;
  return html`<${Chart} title="Processors busy" steps=${steps} of=${(step) => step.processors} words=${PROCESSORS} />
    <${Chart} title="Memory" steps=${steps} of=${(step) => step.memory} words=${bytes} />
    <p class="hint">${usage.pieces.map(whereRanks).join("; ")}.</p>
    ${!usage.is_whole && html`<p class="hint">Only its first ${count(usage.pieces.length, "machine")} are included.</p>`}
    <details><summary>As a table</summary>
      <${Table} label="Use over time" columns=${["From", "To", "Processors busy", "Memory"]}>
        ${steps.map((step) => html`<tr><td><${Time} ms=${step.from} /></td><td><${Time} ms=${step.until} /></td>
          <td class="number">${step.processors.toFixed(2)}</td><td class="number">${bytes(step.memory)}</td></tr>`)}
      <//></details>`;
}

/** The resource use of a job; while it runs, as of the last measurement. */
export function Used({ record }) {
  const { used, exit_codes: codes, job_id: id, attempt, state } = record;
  const load = (signal) => get(`/v1/jobs/${id}/usage`, {}, { signal });
  const { data: usage } = useFresh(load, [id, attempt, state], { every: 10_000, concerns: () => false });
  const isOver = state === "ended";
  const rows = [["Processor time", span(Math.round((used.cpu_s ?? 0) * 1000))], ["Peak memory", bytes(used.peak_memory_bytes ?? 0)]];
  return html`<section class="card"><h2>Resource use</h2>
    ${isOver && html`<dl class="facts">${rows.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`}
    ${usage?.pieces.length > 0 ? html`<${OverTime} usage=${usage} />` : html`<p class="hint">No measurements over time are available.</p>`}
    ${codes.length > 0 && html`<p>Ranks that failed: ${codes.map(([rank, code, signal]) =>
      `rank ${rank} ${signal === null ? `with exit code ${code}` : `by signal ${signal}`}`).join(", ")}.</p>`}
  </section>`;
}

// When a waiting job would start if it were submitted with other options. The grid itself does not change.

import { post } from "../api.js";
import { count, places, span } from "../text.js";
import { html, Table, Time, useNow, useState } from "../ui.js";

/** Useful variants of a request, each with a label and its changes. */
function variants(request) {
  const list = [["Unchanged", {}]];
  const half = Math.floor(request.nodes / 2);
  if (half >= 1) list.push([`On ${count(half, "node")}`, { nodes: half }]);
  if (request.nodes > 3) list.push([`On ${count(Math.floor(request.nodes / 4), "node")}`, { nodes: Math.floor(request.nodes / 4) }]);
  list.push([`With a limit of ${span(request.limit_ms / 2)}`, { limit_ms: Math.ceil(request.limit_ms / 2) }]);
  list.push([`With a limit of ${span(request.limit_ms / 10)}`, { limit_ms: Math.ceil(request.limit_ms / 10) }]);
  return list;
}

export function WhatIf({ record, forecast }) {
  const [rows, set] = useState(null);
  const [busy, work] = useState(false);
  const [own, change] = useState({ nodes: record.request.nodes, minutes: Math.ceil(record.request.limit_ms / 60_000) });
  const now = useNow();

  async function ask(options) {
    work(true);
    const quotes = [];
    for (const [label, changes] of options) {
      const request = { ...record.request, ...changes, hold: false, after: [] };
      try {
        quotes.push([label, await post("/v1/quote", { request, instead_of: record.job_id })]);
      } catch (error) {
        quotes.push([label, { start_ms: null, reason: error.message, places: [] }]);
      }
    }
    set(quotes);
    work(false);
  }

  function askOwn(event) {
    event.preventDefault();
    const changes = { nodes: own.nodes, limit_ms: own.minutes * 60_000 };
    ask([...variants(record.request), [`On ${count(own.nodes, "node")} for ${span(changes.limit_ms)}`, changes]]);
  }

  const start = (quote) => (quote.start_ms === null ? "unknown"
    : html`<${Time} ms=${quote.start_ms} now=${now} /> <small>in ${span(Math.max(0, quote.start_ms - now))}</small>`);
  const gain = (quote) => {
    if (quote.start_ms === null || !forecast || forecast.start_ms === null) return "";
    const sooner = forecast.start_ms - quote.start_ms;
    return Math.abs(sooner) < 1000 ? "same" : sooner > 0 ? `${span(sooner)} sooner` : `${span(-sooner)} later`;
  };
  return html`<section class="card"><h2>What if?</h2>
    <p class="hint">When the job would start if it were cancelled and submitted again like this. The scheduler computes the answer, and
      the job does not change.</p>
    <form class="filters" onSubmit=${askOwn}>
      <label>Nodes <input type="number" min="1" value=${own.nodes} size="6"
        onInput=${(event) => change({ ...own, nodes: Number(event.target.value) })} /></label>
      <label>Limit (minutes) <input type="number" min="1" value=${own.minutes} size="8"
        onInput=${(event) => change({ ...own, minutes: Number(event.target.value) })} /></label>
      <button type="submit" disabled=${busy}>Ask</button>
    </form>
    ${rows && html`<${Table} label="What if" columns=${["Submitted again", "Starts", "Difference", "Where", "Why"]}>
      ${rows.map(([label, quote]) => html`<tr><td>${label}</td><td>${start(quote)}</td><td>${gain(quote)}</td>
        <td>${places(quote.places)}</td><td class="why">${quote.reason}</td></tr>`)}
    <//>`}
  </section>`;
}

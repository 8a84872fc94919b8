// When a job that waits would start if it were another: asked of the scheduler, which changes nothing by that.

import { post } from "../api.js";
import { count, places, span } from "../text.js";
import { html, Table, Time, useNow, useState } from "../ui.js";

/** The variants that are worth a look, each a change of the request. */
function variants(request) {
  const found = [["As it is", {}]];
  const half = Math.floor(request.nodes / 2);
  if (half >= 1) found.push([`On ${count(half, "node")}`, { nodes: half }]);
  if (request.nodes > 3) found.push([`On ${count(Math.floor(request.nodes / 4), "node")}`, { nodes: Math.floor(request.nodes / 4) }]);
  found.push([`With a limit of ${span(request.limit_ms / 2)}`, { limit_ms: Math.ceil(request.limit_ms / 2) }]);
  found.push([`With a limit of ${span(request.limit_ms / 10)}`, { limit_ms: Math.ceil(request.limit_ms / 10) }]);
  return found;
}

export function WhatIf({ record, forecast }) {
  const [rows, set] = useState(null);
  const [busy, work] = useState(false);
  const [own, change] = useState({ nodes: record.request.nodes, minutes: Math.ceil(record.request.limit_ms / 60_000) });
  const now = useNow();

  async function ask(wanted) {
    work(true);
    const found = [];
    for (const [label, changes] of wanted) {
      const request = { ...record.request, ...changes, hold: false, after: [] };
      try {
        found.push([label, await post("/v1/quote", { request, instead_of: record.job_id })]);
      } catch (error) {
        found.push([label, { start_ms: null, reason: error.message, places: [] }]);
      }
    }
    set(found);
    work(false);
  }

  function askOwn(event) {
    event.preventDefault();
    const changes = { nodes: own.nodes, limit_ms: own.minutes * 60_000 };
    ask([...variants(record.request), [`On ${count(own.nodes, "node")} for ${span(changes.limit_ms)}`, changes]]);
  }

  const start = (quote) => (quote.start_ms === null ? "not known"
    : html`<${Time} ms=${quote.start_ms} now=${now} /> <small>in ${span(Math.max(0, quote.start_ms - now))}</small>`);
  const gain = (quote) => {
    if (quote.start_ms === null || !forecast || forecast.start_ms === null) return "";
    const sooner = forecast.start_ms - quote.start_ms;
    return Math.abs(sooner) < 1000 ? "the same" : sooner > 0 ? `${span(sooner)} sooner` : `${span(-sooner)} later`;
  };
  return html`<section class="card"><h2>What if?</h2>
    <p class="hint">When it would start if it were cancelled and submitted again like this, by the scheduler’s own word.
      Nothing is changed by asking.</p>
    <form class="filters" onSubmit=${askOwn}>
      <label>Nodes <input type="number" min="1" value=${own.nodes} size="6"
        onInput=${(event) => change({ ...own, nodes: Number(event.target.value) })} /></label>
      <label>Limit (minutes) <input type="number" min="1" value=${own.minutes} size="8"
        onInput=${(event) => change({ ...own, minutes: Number(event.target.value) })} /></label>
      <button type="submit" disabled=${busy}>Ask</button>
    </form>
    ${rows && html`<${Table} label="What if" columns=${["If it were submitted again", "Starts", "Against now", "Where", "Why"]}>
      ${rows.map(([label, quote]) => html`<tr><td>${label}</td><td>${start(quote)}</td><td>${gain(quote)}</td>
        <td>${places(quote.places)}</td><td class="why">${quote.reason}</td></tr>`)}
    <//>`}
  </section>`;
}

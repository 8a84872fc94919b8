// The overview of the grid: the sites with one cell per node, and the numbers of waiting and running jobs.

import { get, post } from "../api.js";
import { amountOf, count, resourceTitle } from "../text.js";
import { Links } from "./links.js";
import { Empty, html, Trouble, useFresh, useState } from "../ui.js";

const MOST_CELLS = 2048;

/** The cells of a site in node order, each with the job on the node and whether its machine is away. */
function cellsOf(site) {
  const cells = Array.from({ length: Math.min(site.nodes, MOST_CELLS) }, () => ({ job: null, away: false }));
  for (const { job_id: jobId, nodes } of site.busy) {
    for (const [first, end] of nodes) {
      for (let node = first; node < Math.min(end, cells.length); node += 1) cells[node].job = jobId;
    }
  }
  let next = 0;
  for (const machine of site.machines) {
    for (let node = next; node < Math.min(next + machine.nodes, cells.length); node += 1) {
      cells[node].machine = machine.name;
      cells[node].away = !site.answers || !machine.here || machine.problem !== "";
    }
    next += machine.nodes;
  }
  return cells;
}

/** A colour for a job, one of twelve, the same on all pages. */
export const tone = (jobId) => `t${(jobId * 7) % 12}`;

function Cell({ cell, node, paused }) {
  const where = `node ${node}${cell.machine ? ` of ${cell.machine}` : ""}`;
  if (cell.away) return html`<span class="cell away" title="${where}: does not answer"></span>`;
  if (cell.job === null) return html`<span class="cell free" title="${where}: free"></span>`;
  if (cell.job === 0) return html`<span class="cell other" title="${where}: a job of another user"></span>`;
  const isPaused = paused.includes(cell.job);
  return html`<a class="cell ${tone(cell.job)} ${isPaused ? "paused" : ""}" href="#/job/${cell.job}" tabindex="-1"
    title="${where}: job ${cell.job}${isPaused ? ", paused until its next time slice" : ""}"></a>`;
}

function condition(site) {
  if (!site.answers) return ["✕ does not answer", "away"];
  if (site.problem) return ["✕ cut off from the grid", "away"];
  if (site.draining) return ["◐ draining: accepts no new jobs from the grid", "drain"];
  return ["● running", "works"];
}

/** A resource that the site counts: how much of it jobs hold, and how much is free. */
function Amount({ name, total, used }) {
  const [held, all, free] = [used, total, total - used].map((amount) => amountOf(name, amount));
  return html`<div><dt>${resourceTitle(name)}</dt>
    <dd><progress max=${total} value=${used} aria-label="${resourceTitle(name)} in use"></progress>
      ${" "}${held} of ${all}, ${free} free</dd></div>`;
}

function Site({ site, canOperate, reload }) {
  const [message, setMessage] = useState("");
  const [text, kind] = condition(site);
  const cells = cellsOf(site);
  const busy = site.nodes - site.free;
  const jobs = [...new Set(site.busy.map((busy) => busy.job_id))].filter((jobId) => jobId !== 0);

  async function toggle() {
    try {
      await post(`/v1/sites/${encodeURIComponent(site.name)}/${site.draining ? "resume" : "drain"}`);
      setMessage("");
      reload();
    } catch (error) {
      setMessage(error.message);
    }
  }

  return html`<section class="card site">
    <h2>${site.name}</h2>
    <p class="condition ${kind}">${text}</p>
    <p><strong>${busy}</strong> of ${count(site.nodes, "node")} busy; the grid may use ${site.for_grid}.
      ${" "}${count(site.running, "job")} running, ${site.waiting} waiting at this site.</p>
    ${site.amounts.length > 0 && html`<dl class="amounts">${site.amounts.map((amount) => html`<${Amount} ...${amount} key=${amount.name} />`)}</dl>`}
    <div class="cells" aria-hidden="true">
      ${cells.map((cell, node) => html`<${Cell} cell=${cell} node=${node} paused=${site.paused} />`)}
      ${site.nodes > MOST_CELLS && html`<span>and ${site.nodes - MOST_CELLS} more</span>`}
    </div>
    ${jobs.length > 0 && html`<p class="hint">Running: ${jobs.slice(0, 20).map((jobId) => html`
      <a class="chip ${tone(jobId)}" href="#/job/${jobId}">${jobId}</a> `)}${jobs.length > 20 && "…"}</p>`}
    ${site.machines.filter((machine) => machine.problem || !machine.here).map((machine) => html`
      <p class="trouble">${machine.name}: ${machine.problem || "does not answer"}</p>`)}
    ${site.problem && html`<p class="trouble">${site.problem}</p>`}
    ${site.fault && html`<p class="hint">Last fault, ${new Date(site.fault.at_ms).toLocaleString()}: ${site.fault.text}</p>`}
    <p class="hint">${site.policy}</p>
    ${canOperate && html`<p class="buttons"><button type="button" onClick=${toggle}>
      ${site.draining ? "Resume" : "Drain"}</button><span role="status">${message}</span></p>`}
  </section>`;
}

const howPlaced = ({ selection, order, backfill, mode, control }) =>
  `Jobs are placed by ${selection} in the order ${order}, with ${backfill === "none" ? "no" : backfill} backfilling; mode ${mode}, ${control} control.`;

export function GridPage({ who }) {
  const load = async (signal) => {
    const [sites, queue, scheduling, network] = await Promise.all([
      get("/v1/sites", {}, { signal }),
      get("/v1/queue", { limit: 0 }, { signal }),
      get("/v1/scheduling", {}, { signal }),
      get("/v1/network", {}, { signal }),
    ]);
    return { sites: sites.sites, queue, scheduling, network };
  };
  const { data, problem, reload } = useFresh(load, [], { every: 5000, gap: 2000 });
  const canOperate = who.scopes.includes("operate");
  if (!data) return html`<h1>Grid</h1><${Trouble} problem=${problem} />`;
  const { sites, queue, scheduling, network } = data;
  const total = sites.reduce((sum, site) => sum + site.nodes, 0);
  const free = sites.reduce((sum, site) => sum + site.free, 0);
  return html`<h1>Grid</h1><${Trouble} problem=${problem} />
    <dl class="figures">
      <div><dt>Nodes busy</dt><dd>${total - free} <small>of ${total}</small></dd></div>
      <div><dt>Waiting</dt><dd><a href="#/queue">${queue.waiting}</a></dd></div>
      <div><dt>Held</dt><dd><a href="#/jobs?state=held">${queue.held}</a></dd></div>
      <div><dt>Running</dt><dd><a href="#/jobs?state=running">${queue.running + queue.starting}</a></dd></div>
    </dl>
    <p class="hint">${howPlaced(scheduling)}</p>
    <div class="sites">${sites.map((site) => html`
      <${Site} key=${site.name} site=${site} canOperate=${canOperate} reload=${reload} />`)}</div>
    ${!sites.length && html`<${Empty}>The grid has no sites yet.<//>`}
    <ul class="legend" aria-label="What the cells mean">
      <li><span class="cell free"></span> free</li><li><span class="cell t1"></span> a job (each has its own colour)</li>
      <li><span class="cell other"></span> another user’s job</li>
      <li><span class="cell t1 paused"></span> its job is paused</li>
      <li><span class="cell away"></span> does not answer</li></ul>
    <${Links} network=${network} sites=${sites} />`;
}

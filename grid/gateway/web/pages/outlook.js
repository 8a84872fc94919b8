// For operators: how waits and utilisation would change with other settings of the grid. Nothing is changed.

import { get, post } from "../api.js";
import { count, span } from "../text.js";
import { html, Table, Trouble, useFresh, useState } from "../ui.js";

const POLICY = {
  mode: ["local", "sharing", "multi-site", "adaptive"],
  backfill: ["easy", "none", "conservative"],
  selection: ["best-fit", "biggest-free", "equal-util", "random", "earliest-end"],
};

/** The request of a form, with only the settings that differ from the present ones. */
function question(form, sites) {
  const fields = new FormData(form);
  const asked = { nodes: {}, drain: fields.getAll("drain"), policy: {}, hours: Number(fields.get("hours")) };
  for (const site of sites) {
    const nodes = Number(fields.get(`nodes ${site.name}`));
    if (nodes !== site.for_grid) asked.nodes[site.name] = nodes;
  }
  if (fields.get("new")) asked.nodes[fields.get("new")] = Number(fields.get("new nodes"));
  for (const name of Object.keys(POLICY)) if (fields.get(name)) asked.policy[name] = fields.get(name);
  const ends = [fields.get("one"), fields.get("other")];
  if (ends.every(Boolean)) asked.cut = [ends];
  const load = fields.get("load");
  return load === "none" ? { ...asked, again: false } : { ...asked, load: Number(load) };
}

function SiteField({ site }) {
  return html`<fieldset><legend>${site.name}</legend>
    <label>Nodes <input type="number" name="nodes ${site.name}" min="0" value=${site.for_grid} /></label>
    <label><input type="checkbox" name="drain" value=${site.name} /> drained</label></fieldset>`;
}

function Choice({ name, label, options }) {
  return html`<label>${label} <select name=${name}>
    ${options.map(([value, text]) => html`<option value=${value}>${text}</option>`)}</select></label>`;
}

const LOADS = [["1", "as many as before"], ["2", "twice as many"], ["1.5", "1.5 times as many"], ["0.5", "half as many"], ["none", "none"]];
const HOURS = [["1", "1 h"], ["6", "6 h"], ["24", "24 h"], ["168", "a week"]];

function Asked({ sites, scheduling, busy, ask }) {
  const names = [["", "–"], ...sites.map((site) => [site.name, site.name])];
  return html`<form class="card" onSubmit=${(event) => { event.preventDefault(); ask(question(event.target, sites)); }}>
    <h2>Settings</h2>
    <div class="filters">${sites.map((site) => html`<${SiteField} key=${site.name} site=${site} />`)}
      <fieldset><legend>New site</legend><label>Name <input name="new" size="8" /></label>
        <label>Nodes <input type="number" name="new nodes" min="1" value="4" /></label></fieldset></div>
    <div class="filters">${Object.entries(POLICY).map(([name, values]) => html`
      <${Choice} name=${name} label=${name} options=${[["", `${scheduling[name]} (now)`], ...values.filter((each) => each !== scheduling[name]).map((each) => [each, each])]} />`)}
      ${scheduling.links && html`<${Choice} name="one" label="No link between" options=${names} /><${Choice} name="other" label="and" options=${names} />`}</div>
    <div class="filters"><${Choice} name="hours" label="Simulate" options=${HOURS} />
      <${Choice} name="load" label="New jobs" options=${LOADS} />
      <button type="submit" disabled=${busy}>${busy ? "Simulating …" : "Simulate"}</button></div>
  </form>`;
}

const ROWS = [
  ["Jobs waiting or arriving", (outlook) => outlook.jobs.toLocaleString()],
  ["Jobs started", (outlook) => outlook.started.toLocaleString()],
  ["Jobs that can never start", (outlook) => outlook.never.toLocaleString()],
  ["Mean wait", (outlook) => span(outlook.wait_ms)],
  ["Longest wait", (outlook) => span(outlook.longest_ms)],
  ["Utilisation", (outlook) => `${(100 * outlook.used).toFixed(1)}%`],
];

/** Two bars with the utilisation of a site: with the present settings (now) and with the changed ones (then). */
function Use({ name, now, then }) {
  const part = (site) => (site ? 100 * site.used : 0);
  const text = (site) => (site ? `${part(site).toFixed(1)}% of ${count(site.nodes, "node")}` : "no such site");
  return html`<div class="need"><h3>${name}</h3>${[["now", now], ["then", then]].map(([word, site]) => html`
    <div class="bar" role="img" aria-label="${name} ${word}: ${text(site)}"><span class="has whole"></span>
      <span class="is-free ${word}" style=${{ width: `${part(site)}%` }}></span></div>
    <p><small>${word}: ${text(site)}</small></p>`)}</div>`;
}

function Comparison({ outlooks }) {
  const title = outlooks.length === 1 ? "If each job runs up to its limit"
    : `If jobs run for ${Math.round(100 * outlooks.length)}% of their limits, like the jobs that ended`;
  const names = [...new Set([...outlooks.now.sites, ...outlooks.then.sites].map((site) => site.site))];
  const of = (outlook, name) => outlook.sites.find((site) => site.site === name);
  return html`<section class="card"><h2>${title}</h2>
    <${Table} label=${title} columns=${["Figure", "Now", "Then"]}>
      ${ROWS.map(([label, value]) => html`<tr><th scope="row">${label}</th><td class="number">${value(outlooks.now)}</td>
        <td class="number">${value(outlooks.then)}</td></tr>`)}
    <//>
    ${names.map((name) => html`<${Use} key=${name} name=${name} now=${of(outlooks.now, name)} then=${of(outlooks.then, name)} />`)}
  </section>`;
}

export function OutlookPage() {
  const load = async (signal) => {
    const [sites, scheduling] = await Promise.all([get("/v1/sites", {}, { signal }), get("/v1/scheduling", {}, { signal })]);
    return { sites: sites.sites, scheduling };
  };
  const { data, problem } = useFresh(load, [], { every: 3_600_000, concerns: () => false });
  const [busy, work] = useState(false);
  const [result, setResult] = useState({ answer: null, problem: null });
  async function ask(asked) {
    work(true);
    try {
      setResult({ answer: await post("/v1/what-if", asked), problem: null });
    } catch (error) {
      setResult({ answer: null, problem: error });
    }
    work(false);
  }
  if (!data) return html`<h1>What if?</h1><${Trouble} problem=${problem} />`;
  const { answer } = result;
  return html`<h1>What if?</h1><${Trouble} problem=${problem} />
    <p class="hint">Simulate the queue from now on, with the present settings and with the changed ones. The grid itself does not change.</p>
    <${Asked} sites=${data.sites} scheduling=${data.scheduling} busy=${busy} ask=${ask} />
    <${Trouble} problem=${result.problem} />
    ${answer && html`<div aria-live="polite"><p><strong>Certainty:</strong> ${answer.sure}.</p>
      <div class="sites">${answer.plays.map((outlooks) => html`<${Comparison} key=${outlooks.length} outlooks=${outlooks} />`)}</div>
      <p class="hint">Assumptions: ${answer.assumed.join("; ")}.</p></div>`}`;
}

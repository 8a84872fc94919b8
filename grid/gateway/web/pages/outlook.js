// What would become of waits and of the use of nodes if the grid were another: for operators; nothing is changed.

import { get, post } from "../api.js";
import { count, span } from "../text.js";
import { html, Table, Trouble, useFresh, useState } from "../ui.js";

const POLICY = {
  mode: ["local", "sharing", "multi-site", "adaptive"],
  backfill: ["easy", "none", "conservative"],
  selection: ["best-fit", "biggest-free", "equal-util", "random", "earliest-end"],
};

/** What a form asks for: only what is another than now. */
function question(form, sites) {
  const said = new FormData(form);
  const asked = { nodes: {}, drain: said.getAll("drain"), policy: {}, hours: Number(said.get("hours")) };
  for (const site of sites) {
    const nodes = Number(said.get(`nodes ${site.name}`));
    if (nodes !== site.for_grid) asked.nodes[site.name] = nodes;
  }
  if (said.get("new")) asked.nodes[said.get("new")] = Number(said.get("new nodes"));
  for (const name of Object.keys(POLICY)) if (said.get(name)) asked.policy[name] = said.get(name);
  const ends = [said.get("one"), said.get("other")];
  if (ends.every(Boolean)) asked.cut = [ends];
  const load = said.get("load");
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

const LOADS = [["1", "as many as in that time"], ["2", "twice as many"], ["1.5", "half as many more"], ["0.5", "half as many"], ["none", "none"]];
const HOURS = [["1", "1 h"], ["6", "6 h"], ["24", "24 h"], ["168", "a week"]];

function Asked({ sites, scheduling, busy, ask }) {
  const names = [["", "–"], ...sites.map((site) => [site.name, site.name])];
  return html`<form class="card" onSubmit=${(event) => { event.preventDefault(); ask(question(event.target, sites)); }}>
    <h2>If the grid were like this</h2>
    <div class="filters">${sites.map((site) => html`<${SiteField} key=${site.name} site=${site} />`)}
      <fieldset><legend>One more site</legend><label>Name <input name="new" size="8" /></label>
        <label>Nodes <input type="number" name="new nodes" min="1" value="4" /></label></fieldset></div>
    <div class="filters">${Object.entries(POLICY).map(([name, values]) => html`
      <${Choice} name=${name} label=${name} options=${[["", `${scheduling[name]} (as it is)`], ...values.filter((each) => each !== scheduling[name]).map((each) => [each, each])]} />`)}
      ${scheduling.links && html`<${Choice} name="one" label="No link between" options=${names} /><${Choice} name="other" label="and" options=${names} />`}</div>
    <div class="filters"><${Choice} name="hours" label="Look ahead, and back" options=${HOURS} />
      <${Choice} name="load" label="Jobs come" options=${LOADS} />
      <button type="submit" disabled=${busy}>${busy ? "It is played …" : "Ask"}</button></div>
  </form>`;
}

const ROWS = [
  ["Jobs that wait or come", (outlook) => outlook.jobs.toLocaleString()],
  ["Start", (outlook) => outlook.started.toLocaleString()],
  ["Could never start", (outlook) => outlook.never.toLocaleString()],
  ["Wait, in the mean", (outlook) => span(outlook.wait_ms)],
  ["Wait, at most", (outlook) => span(outlook.longest_ms)],
  ["Nodes used", (outlook) => `${(100 * outlook.used).toFixed(1)}%`],
];

/** Two bars, one under the other: which part of the time of its nodes a site is used, now and then. */
function Use({ name, now, then }) {
  const part = (site) => (site ? 100 * site.used : 0);
  const text = (site) => (site ? `${part(site).toFixed(1)}% of ${count(site.nodes, "node")}` : "not there");
  return html`<div class="need"><h3>${name}</h3>${[["now", now], ["then", then]].map(([word, site]) => html`
    <div class="bar" role="img" aria-label="${name} ${word}: ${text(site)}"><span class="has whole"></span>
      <span class="is-free ${word}" style=${{ width: `${part(site)}%` }}></span></div>
    <p><small>${word}: ${text(site)}</small></p>`)}</div>`;
}

function Play({ play }) {
  const title = play.length === 1 ? "If each job takes as long as it may"
    : `If jobs take ${Math.round(100 * play.length)}% of their limits, as those did that ended`;
  const names = [...new Set([...play.now.sites, ...play.then.sites].map((site) => site.site))];
  const of = (outlook, name) => outlook.sites.find((site) => site.site === name);
  return html`<section class="card"><h2>${title}</h2>
    <${Table} label=${title} columns=${["What", "Now", "Then"]}>
      ${ROWS.map(([label, tell]) => html`<tr><th scope="row">${label}</th><td class="number">${tell(play.now)}</td>
        <td class="number">${tell(play.then)}</td></tr>`)}
    <//>
    ${names.map((name) => html`<${Use} key=${name} name=${name} now=${of(play.now, name)} then=${of(play.then, name)} />`)}
  </section>`;
}

export function OutlookPage() {
  const load = async (signal) => {
    const [sites, scheduling] = await Promise.all([get("/v1/sites", {}, { signal }), get("/v1/scheduling", {}, { signal })]);
    return { sites: sites.sites, scheduling };
  };
  const { data, problem } = useFresh(load, [], { every: 3_600_000, concerns: () => false });
  const [busy, work] = useState(false);
  const [told, tell] = useState({ answer: null, problem: null });
  async function ask(asked) {
    work(true);
    try {
      tell({ answer: await post("/v1/what-if", asked), problem: null });
    } catch (error) {
      tell({ answer: null, problem: error });
    }
    work(false);
  }
  if (!data) return html`<h1>What if?</h1><${Trouble} problem=${problem} />`;
  const { answer } = told;
  return html`<h1>What if?</h1><${Trouble} problem=${problem} />
    <p class="hint">The scheduler plays its queue forward from now, as the grid is and as it would be. Nothing is changed by asking.</p>
    <${Asked} sites=${data.sites} scheduling=${data.scheduling} busy=${busy} ask=${ask} />
    <${Trouble} problem=${told.problem} />
    ${answer && html`<div aria-live="polite"><p><strong>How sure:</strong> ${answer.sure}.</p>
      <div class="sites">${answer.plays.map((play) => html`<${Play} key=${play.length} play=${play} />`)}</div>
      <p class="hint">Assumed: ${answer.assumed.join("; ")}.</p></div>`}`;
}

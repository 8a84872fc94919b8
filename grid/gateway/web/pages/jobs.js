// The jobs that the user may see, newest first, with filters and with actions on the selected jobs.

import { Actions } from "../actions.js";
import { get } from "../api.js";
import { gridNow } from "../clock.js";
import { endOf, places, sizeOf, span, stateOf, title } from "../text.js";
import { Empty, html, JobLink, State, Table, Time, Trouble, useFresh, useNow, useState } from "../ui.js";

const STATES = ["held", "waiting", "starting", "running", "ending", "ended", "refused"];
const OUTCOMES = ["finished", "failed", "limit", "cancelled"];
const SINCE = [["", "any time"], ["3600000", "the last hour"], ["86400000", "the last day"], ["604800000", "the last week"]];
const LIMIT = 200;

/** The parameters of the request for jobs, from the address of the page. */
function parametersOf(query) {
  const since = Number(query.get("since"));
  return {
    user: query.get("user"), name: query.get("name"), array: query.get("array"), site: query.get("site"),
    state: query.get("state"), outcome: query.get("outcome"), below: query.get("below"),
    since_ms: since ? gridNow() - since : undefined,
  };
}

function Choice({ name, label, value, options }) {
  return html`<label>${label} <select name=${name} value=${value ?? ""}>
    ${options.map((each) => {
      const [key, text] = Array.isArray(each) ? each : [each, each || "any"];
      return html`<option value=${key}>${text}</option>`;
    })}</select></label>`;
}

function Filters({ query, sites, isOperator }) {
  function go(event) {
    event.preventDefault();
    const filled = [...new FormData(event.target.form ?? event.target)].filter(([, value]) => value !== "");
    location.hash = `#/jobs?${new URLSearchParams(filled)}`;
  }
  return html`<form class="filters" onSubmit=${go} onChange=${go} role="search">
    ${isOperator && html`<label>User <input name="user" value=${query.get("user") ?? ""} size="10" /></label>`}
    <label>Name <input name="name" value=${query.get("name") ?? ""} size="14" /></label>
    <label>Array <input name="array" value=${query.get("array") ?? ""} size="10" /></label>
    <${Choice} name="state" label="State" value=${query.get("state")} options=${["", ...STATES]} />
    <${Choice} name="outcome" label="Ended" value=${query.get("outcome")} options=${["", ...OUTCOMES]} />
    <${Choice} name="site" label="Site" value=${query.get("site")} options=${["", ...sites]} />
    <${Choice} name="since" label="Active in" value=${query.get("since")} options=${SINCE} />
    <button type="submit">Search</button>
  </form>`;
}

const SORTS = {
  Job: (job) => -job.job_id, User: (job) => job.request.user, State: stateOf, Nodes: (job) => -job.request.nodes,
  Submitted: (job) => -job.submit_ms, Ran: (job) => -((endOf(job) ?? gridNow()) - (job.start_ms ?? gridNow())),
};

function sorted(jobs, by) {
  const key = SORTS[by];
  return [...jobs].sort((one, other) => (key(one) < key(other) ? -1 : key(one) > key(other) ? 1 : 0));
}

export function JobsPage({ at, who }) {
  const [ticked, tick] = useState(new Set());
  const [by, sort] = useState("Job");
  const now = useNow();
  const load = async (signal) => {
    const [page, sites] = await Promise.all([
      get("/v1/jobs", { ...parametersOf(at.query), limit: LIMIT }, { signal }),
      get("/v1/sites", {}, { signal }),
    ]);
    return { ...page, sites: sites.sites.map((site) => site.name) };
  };
  const { data, problem, reload } = useFresh(load, [at.query.toString()], { every: 10_000, gap: 1500 });
  if (!data) return html`<h1>Jobs</h1><${Trouble} problem=${problem} />`;
  const chosen = data.jobs.filter((job) => ticked.has(job.job_id));

  function turn(jobId) {
    const next = new Set(ticked);
    if (!next.delete(jobId)) next.add(jobId);
    tick(next);
  }
  const all = () => tick(chosen.length === data.jobs.length ? new Set() : new Set(data.jobs.map((job) => job.job_id)));
  const heads = [
    html`<input type="checkbox" aria-label="Select all" checked=${chosen.length > 0 && chosen.length === data.jobs.length} onClick=${all} />`,
    ...["Job", "Name", "User", "State", "Nodes", "Where", "Submitted", "Ran"].map((head) => !SORTS[head] ? head
      : html`<button type="button" class="head" aria-pressed=${by === head} onClick=${() => sort(head)}>
        ${head}${by === head ? " ▾" : ""}</button>`),
  ];
  const older = new URLSearchParams(at.query);
  if (data.below) older.set("below", data.below);
  return html`<h1>Jobs</h1><${Trouble} problem=${problem} />
    <${Filters} query=${at.query} sites=${data.sites} isOperator=${who.scopes.includes("operate")} />
    <p><${Actions} records=${chosen} done=${reload} /></p>
    ${data.jobs.length === 0 ? html`<${Empty}>No jobs match.<//>` : html`
    <${Table} label="Jobs" columns=${heads}>
      ${sorted(data.jobs, by).map((job) => html`<tr key=${job.job_id}>
        <td><input type="checkbox" aria-label="Select job ${job.job_id}" checked=${ticked.has(job.job_id)}
          onClick=${() => turn(job.job_id)} /></td>
        <td><${JobLink} id=${job.job_id} /></td>
        <td class="name" dir="auto">${title(job)}</td>
        <td class="name" dir="auto">${job.request.user}</td>
        <td><${State} state=${stateOf(job)} /></td>
        <td class="number">${sizeOf(job.request)}</td>
        <td>${places(job.places)}</td>
        <td><${Time} ms=${job.submit_ms} now=${now} /></td>
        <td class="number">${job.start_ms === null ? "–" : span((endOf(job) ?? now) - job.start_ms)}</td>
      </tr>`)}
    <//>`}
    ${data.below && html`<p><a href="#/jobs?${older.toString()}">Older jobs</a></p>`}`;
}

// The waiting jobs in queue order: when each one starts, and why not sooner.

import { get } from "../api.js";
import { count, places, span } from "../text.js";
import { Empty, html, JobLink, State, Table, Time, Trouble, useFresh, useNow, useState } from "../ui.js";

export function QueuePage({ who }) {
  const [user, only] = useState("");
  const [site, at] = useState("");
  const load = (signal) => get("/v1/queue", { limit: 500, explain: true }, { signal });
  const { data, problem } = useFresh(load, [], { every: 5000, gap: 2000 });
  const now = useNow();
  if (!data) return html`<h1>Queue</h1><${Trouble} problem=${problem} />`;
  const jobs = data.jobs.filter((job) => (!user || job.user === user) && (!site || job.places.some(([name]) => name === site)));
  const sites = [...new Set(data.jobs.flatMap((job) => job.places.map(([name]) => name)))].sort();
  const users = [...new Set(data.jobs.map((job) => job.user))].sort();
  return html`<h1>Queue</h1><${Trouble} problem=${problem} />
    <p>${count(data.waiting, "job")} waiting, ${data.held} held, ${data.starting + data.running} running,
      ${" "}${data.ending} ending.</p>
    <form class="filters" onSubmit=${(event) => event.preventDefault()}>
      <label>User <select value=${user} onChange=${(event) => only(event.target.value)}>
        <option value="">all</option>${users.map((name) => html`<option value=${name}>${name}</option>`)}
      </select></label>
      <label>Site <select value=${site} onChange=${(event) => at(event.target.value)}>
        <option value="">all</option>${sites.map((name) => html`<option value=${name}>${name}</option>`)}
      </select></label>
    </form>
    ${jobs.length === 0 ? html`<${Empty}>${data.jobs.length ? "No waiting jobs match." : "No jobs are waiting."}<//>` : html`
    <${Table} label="Waiting jobs" columns=${["Position", "Job", "User", "Nodes", "Limit", "Waited", "Starts", "Where", "Why not now"]}>
      ${jobs.map((job) => html`<tr key=${job.job_id}>
        <td class="number">${data.jobs.indexOf(job) + 1}</td>
        <td>${who.scopes.includes("operate") || job.user === who.user
          ? html`<${JobLink} id=${job.job_id} />` : job.job_id}</td>
        <td class="name">${job.user}</td>
        <td class="number">${job.nodes}</td>
        <td class="number">${span(job.limit_ms)}</td>
        <td class="number">${span(now - job.submit_ms)}</td>
        <td>${job.start_ms === null
          ? html`<${State} state=${job.state} />`
          : html`<${Time} ms=${job.start_ms} now=${now} /> <small>in ${span(Math.max(0, job.start_ms - now))}</small>`}</td>
        <td>${places(job.places)}</td>
        <td class="why">${job.reason}</td>
      </tr>`)}
    <//>`}
    ${data.waiting > data.jobs.length && html`<p class="hint">Only the first ${data.jobs.length} jobs are shown.</p>`}`;
}

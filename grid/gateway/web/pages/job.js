// One job: its state and history, why it waits, its output, and how changes would move its start.

import { get } from "../api.js";
import { absolute, asksForParts, chunkText, count, endOf, measuredSlowdown, needs, places, span, stateOf, title, when } from "../text.js";
import { Actions } from "../actions.js";
import { html, JobLink, State, Table, Time, Trouble, useFresh, useNow } from "../ui.js";
import { Output } from "./output.js";
import { Used } from "./used.js";
import { WhatIf } from "./what-if.js";

const OVER = ["ended", "refused"];

function Facts({ record, now }) {
  const { request } = record;
  const ran = record.start_ms === null ? null : (endOf(record) ?? now) - record.start_ms;
  const facts = [
    ["User", html`<span dir="auto">${request.user || "–"}${request.account ? `, account ${request.account}` : ""}</span>`],
    [asksForParts(request) ? "Chunks" : "Nodes", request.nodes],
    ...(request.chunk ? [[asksForParts(request) ? "Each chunk" : "Each node", chunkText(request.chunk)]] : []),
    ["Limit", span(request.limit_ms)],
    ["Where", places(record.places)],
    ["Submitted", html`<${Time} ms=${record.submit_ms} now=${now} />`],
    ["Started", html`<${Time} ms=${record.start_ms} now=${now} />`],
    ["Ended", html`<${Time} ms=${endOf(record)} now=${now} />`],
    ["Waited", span((record.start_ms ?? record.end_ms ?? now) - record.submit_ms)],
    ["Ran", span(ran)],
    ["Starts", record.starts],
  ];
  if (request.priority) facts.push(["Priority", request.priority]);
  if (request.resources) facts.push(["Needs", needs(request.resources)]);
  if (record.split) facts.push(["Split", record.split.text + (record.end_ms !== null && ran !== null ? `; actual run time ${span(ran)}` : "")]);
  if (record.sharing) facts.push(["Shares nodes", record.sharing.text + measuredSlowdown(record.sharing)]);
  if (record.split?.communication) facts.push(["Sends", record.split.communication]);
  if (record.machines.length) facts.push(["Machines", record.machines.join(", ")]);
  return html`<dl class="facts">${facts.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

/** A progress bar: the run time so far, out of the job's limit. */
function Progress({ record, now }) {
  if (record.state !== "running") return null;
  const ran = Math.max(0, now - record.start_ms);
  const left = record.request.limit_ms - ran;
  return html`<p><progress max=${record.request.limit_ms} value=${ran} aria-label="Time used"></progress>
    ${" "}${span(ran)} of ${span(record.request.limit_ms)}; ${left >= 0 ? `${span(left)} left` : "past its limit"}</p>`;
}

/** Why the job waits, with the nodes it needs and the free nodes of each site. */
function Why({ forecast, record, now }) {
  const most = Math.max(record.request.nodes, ...forecast.sites.map((site) => site.nodes), 1);
  const part = (nodes) => ({ width: `${(100 * nodes) / most}%` });
  const ofParts = asksForParts(record.request); // free nodes do not say whether parts of nodes fit
  return html`<section class="card"><h2>${record.state === "waiting" || record.state === "held" ? "Why it waits" : "Forecast"}</h2>
    <p class="reason">${forecast.reason}</p>
    ${forecast.start_ms !== null && html`<p>Starts <strong>${when(forecast.start_ms, now)}</strong>, in
      ${" "}${span(Math.max(0, forecast.start_ms - now))}, on ${places(forecast.places)}, if every job runs up
      to its limit and no new jobs arrive.</p>`}
    ${forecast.sites.map((site) => html`<div class="need" key=${site.site}>
      <h3>${site.site}</h3>
      ${!ofParts && html`<div class="bar" role="img" aria-label="${site.free} of ${site.nodes} nodes free; it needs ${record.request.nodes}">
        <span class="has" style=${part(site.nodes)}></span><span class="is-free" style=${part(site.free)}></span>
        <span class="needs" style=${{ left: `${(100 * record.request.nodes) / most}%` }}></span>
      </div>`}
      <p><small>${!ofParts && `${site.free} of ${count(site.nodes, "node")} free; it needs ${record.request.nodes}.`}
        ${" "}${site.start_ms !== null ? `On this site alone: ${site.start_ms <= now ? "now" : `in ${span(site.start_ms - now)}`}. ` : ""}
        ${site.reason}${site.waits_for.length ? html` Waits for ${site.waits_for.slice(0, 8).map((id) => html`<${JobLink} id=${id} /> `)}` : ""}</small></p>
    </div>`)}
    ${forecast.split && html`<p class="hint">Split: ${forecast.split.reason}</p>`}
  </section>`;
}

/** The history of the job, as a timeline and as a table. */
function Timeline({ history, now }) {
  if (!history.length) return null;
  const [first, last] = [history[0].at_ms, Math.max(history.at(-1).at_ms, history[0].at_ms + 1)];
  return html`<section class="card"><h2>History</h2>
    <div class="line" aria-hidden="true">${history.map((entry) => html`
      <span class="dot" style=${{ left: `${(100 * (entry.at_ms - first)) / (last - first)}%` }}
        title="${entry.kind}: ${absolute(entry.at_ms)}"></span>`)}</div>
    <${Table} label="History" columns=${["Time", "After", "Event", "Details"]}>
      ${history.map((entry, index) => html`<tr>
        <td><${Time} ms=${entry.at_ms} now=${now} /></td>
        <td class="number">${index ? `+${span(entry.at_ms - history[index - 1].at_ms)}` : ""}</td>
        <td>${entry.kind}</td><td class="why" dir="auto">${entry.detail}</td></tr>`)}
    <//></section>`;
}

const SHOWN = 12;

/** The jobs on one side of the graph, each with its state or the condition on it. */
function Side({ label, jobs }) {
  if (!jobs.length) return null;
  return html`<div><h3>${label}</h3><ul>${jobs.slice(0, SHOWN).map(([id, text]) => html`
    <li><${JobLink} id=${id} /> ${text}</li>`)}</ul>
    ${jobs.length > SHOWN && html`<p><small>and ${jobs.length - SHOWN} more</small></p>`}</div>`;
}

/** The jobs that this job waits for, the jobs that wait for it, and its array. */
function Related({ record, followers }) {
  const { after, array } = record.request;
  if (!after.length && !array && !followers.length) return null;
  const arrow = html`<span class="arrow" aria-hidden="true">→</span>`;
  const has = (job) => job.request.after.find((each) => each.job_id === record.job_id)?.has;
  return html`<section class="card"><h2>Related jobs</h2>
    ${(after.length > 0 || followers.length > 0) && html`<div class="graph">
      <${Side} label="Waits for" jobs=${after.map((each) => [each.job_id, `to have ${each.has}`])} />
      ${after.length > 0 && arrow}<div class="self">job ${record.job_id}, <${State} state=${stateOf(record)} /></div>
      ${followers.length > 0 && arrow}
      <${Side} label="Waiting for this job" jobs=${followers.map((job) =>
        [job.job_id, html`to have ${has(job)}: <${State} state=${stateOf(job)} />`])} /></div>`}
    ${array && html`<p>Index ${array.index} of the array <a href="#/jobs?array=${encodeURIComponent(array.name)}" dir="auto">${array.name}</a>${
      record.elements.length ? `; ${count(record.elements.length, "task")} ended` : ""}.</p>`}
  </section>`;
}

export function JobPage({ at }) {
  const id = at.target;
  const load = async (signal) => {
    const record = await get(`/v1/jobs/${id}`, {}, { signal });
    const [history, followers] = await Promise.all([
      get(`/v1/jobs/${id}/history`, {}, { signal }),
      get("/v1/jobs", { follows: record.job_id, limit: 200 }, { signal }),
    ]);
    const forecast = OVER.includes(record.state) || record.state === "running" ? null
      : await get(`/v1/jobs/${id}/forecast`, {}, { signal });
    return { record, history: history.entries, followers: followers.jobs.reverse(), forecast };
  };
  const { data, problem, reload } = useFresh(load, [id], {
    every: 5000,
    // The reasons for a wait depend on other jobs, too; they are refreshed by the timer.
    concerns: (event) => event.job_id === Number(id),
  });
  const now = useNow();
  if (!data) return html`<h1>Job ${id}</h1><${Trouble} problem=${problem} />`;
  const { record, history, followers, forecast } = data;
  return html`<h1>Job ${record.job_id} <small class="name" dir="auto">${title(record)}</small></h1>
    <${Trouble} problem=${problem} />
    <p><${State} state=${stateOf(record)} /> ${record.reason && html`<span class="reason" dir="auto">${record.reason}</span>`}</p>
    <p><${Actions} records=${[record]} done=${reload} /></p>
    <${Progress} record=${record} now=${now} />
    <${Facts} record=${record} now=${now} />
    ${forecast && html`<${Why} forecast=${forecast} record=${record} now=${now} />`}
    ${["waiting", "held"].includes(record.state) && html`<${WhatIf} record=${record} forecast=${forecast} />`}
    ${record.starts > 0 && html`<${Output} record=${record} />`}
    ${record.starts > 0 && html`<${Used} record=${record} />`}
    <${Related} record=${record} followers=${followers} />
    <${Timeline} history=${history} now=${now} />`;
}

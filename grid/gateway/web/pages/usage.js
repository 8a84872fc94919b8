// Node-hours, core-hours and GPU-hours of jobs, by user, account, site or day.

import { jobsOf } from "../api.js";
import { gridNow } from "../clock.js";
import { count, endOf, mostNodes } from "../text.js";
import { Empty, html, Table, Trouble, useFresh, useNow, useState } from "../ui.js";

const DAY = 86_400_000;
const MOST_JOBS = 20_000;
const BY = {
  user: (job) => [[job.request.user || "–", 1]],
  account: (job) => [[job.request.account || "–", 1]],
  site: (job) => job.places.map(([site, nodes]) => [site, nodes / job.request.nodes]),
  day: (job) => [[new Date(job.start_ms).toLocaleDateString(undefined, { dateStyle: "medium" }), 1]],
};

/** Node-hours and numbers of jobs, grouped as `by` says; a job on several sites counts at each in proportion to its nodes. */
function usageOf(jobs, by, now) {
  const found = new Map();
  for (const job of jobs) {
    if (job.start_ms === null) continue;
    const hours = ((endOf(job) ?? now) - job.start_ms) / 3_600_000;
    const { cores = 0, gpus = 0 } = job.request.chunk === undefined ? {} : { cores: 1, ...job.request.chunk };
    for (const [name, part] of BY[by](job)) {
      const row = found.get(name) ?? { name, jobs: 0, hours: 0, cpuHours: 0, coreHours: 0, gpuHours: 0 };
      row.jobs += 1;
      row.hours += hours * mostNodes(job.request) * part;
      row.coreHours += hours * job.request.nodes * cores * part;
      row.gpuHours += hours * job.request.nodes * gpus * part;
      row.cpuHours += (job.used.cpu_s * part) / 3600;
      found.set(name, row);
    }
  }
  return [...found.values()].sort((one, other) => other.hours - one.hours || (one.name < other.name ? -1 : 1));
}

export function UsagePage() {
  const [by, group] = useState("user");
  const [days, look] = useState(7);
  const now = useNow(60_000);
  const load = async (signal) => {
    const jobs = [];
    await jobsOf({ since_ms: gridNow() - days * DAY }, { most: MOST_JOBS, each: (page) => jobs.push(...page), signal });
    return jobs;
  };
  const { data, problem } = useFresh(load, [days], { every: 60_000, gap: 20_000 });
  const rows = data ? usageOf(data, by, now) : [];
  const hasParts = rows.some((row) => row.coreHours > 0);
  const most = Math.max(...rows.map((row) => row.hours), 1e-9);
  return html`<h1>Usage</h1><${Trouble} problem=${problem} />
    <form class="filters">
      <label>By <select value=${by} onChange=${(event) => group(event.target.value)}>
        ${Object.keys(BY).map((name) => html`<option value=${name}>${name}</option>`)}</select></label>
      <label>In the last <select value=${days} onChange=${(event) => look(Number(event.target.value))}>
        ${[1, 7, 30, 90].map((number) => html`<option value=${number}>${count(number, "day")}</option>`)}</select></label>
    </form>
    ${data && !rows.length && html`<${Empty}>No jobs have run.<//>`}
    ${rows.length > 0 && html`<${Table} label="Usage" columns=${[by, "Node-hours", "Share", "CPU-hours", ...(hasParts ? ["Core-hours", "GPU-hours"] : []), "Jobs"]}>
      ${rows.map((row) => html`<tr key=${row.name}><td class="name" dir="auto">${row.name}</td>
        <td class="number">${row.hours.toFixed(2)}</td>
        <td><progress max=${most} value=${row.hours} aria-label="Node-hours of ${row.name}"></progress></td>
        <td class="number">${row.cpuHours.toFixed(2)}</td>
        ${hasParts && html`<td class="number">${row.coreHours.toFixed(2)}</td><td class="number">${row.gpuHours.toFixed(2)}</td>`}
        <td class="number">${row.jobs}</td></tr>`)}
    <//>`}
    ${data && data.length >= MOST_JOBS && html`<p class="hint">Only the last ${count(MOST_JOBS, "job")} are counted.</p>`}`;
}

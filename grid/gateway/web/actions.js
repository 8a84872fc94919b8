// The buttons that cancel, hold and release jobs. A cancellation asks for confirmation first.

import { post } from "./api.js";
import { Confirm, html, useState } from "./ui.js";
import { count } from "./text.js";

const OPEN = ["held", "waiting", "starting", "running", "ending"];
const ACTIONS = [
  { kind: "hold", label: "Hold", from: ["waiting"], confirms: false },
  { kind: "release", label: "Release", from: ["held"], confirms: false },
  { kind: "cancel", label: "Cancel", from: OPEN, confirms: true },
];

function consequences(records) {
  const running = records.filter((record) => ["starting", "running", "ending"].includes(record.state)).length;
  const waiting = records.length - running;
  const parts = [];
  if (running) parts.push(`${count(running, "running job")} will be terminated; output written so far is kept`);
  if (waiting) parts.push(`${count(waiting, "job")} will not start`);
  return `${parts.join(", and ")}. This cannot be undone.`;
}

/** The actions that apply to some of these jobs; `done` is called once the grid has carried one out. */
export function Actions({ records, done }) {
  const [pending, confirm] = useState(null);
  const [message, setMessage] = useState("");
  const eligible = (action) => records.filter((record) => action.from.includes(record.state));

  async function run(action) {
    confirm(null);
    const jobIds = eligible(action).map((record) => record.job_id);
    try {
      const answer = await post(`/v1/jobs/${action.kind}`, { job_ids: jobIds });
      const left = jobIds.length - answer.job_ids.length;
      setMessage(`${action.label}: ${count(answer.job_ids.length, "job")}${left ? `; ${left} skipped because their state has changed` : ""}.`);
      done();
    } catch (error) {
      setMessage(error.message);
    }
  }

  return html`<span class="buttons">
    ${ACTIONS.map((action) => html`<button type="button" disabled=${!eligible(action).length}
        class=${action.kind === "cancel" ? "danger" : ""}
        onClick=${() => (action.confirms ? confirm(action) : run(action))}>${action.label}</button>`)}
    <span role="status">${message}</span>
    ${pending && html`<${Confirm} text=${consequences(eligible(pending))} action="Cancel ${count(eligible(pending).length, "job")}"
        onYes=${() => run(pending)} onNo=${() => confirm(null)} />`}
  </span>`;
}

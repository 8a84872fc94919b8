// What users want of jobs: cancel, hold, release; what follows is said before.

import { post } from "./api.js";
import { Confirm, html, useState } from "./ui.js";
import { count } from "./text.js";

const OPEN = ["held", "waiting", "starting", "running", "ending"];
const WISHES = [
  { kind: "hold", label: "Hold", from: ["waiting"], asks: false },
  { kind: "release", label: "Release", from: ["held"], asks: false },
  { kind: "cancel", label: "Cancel", from: OPEN, asks: true },
];

function what(kind, records) {
  const running = records.filter((record) => ["starting", "running", "ending"].includes(record.state)).length;
  const waiting = records.length - running;
  const parts = [];
  if (running) parts.push(`${count(running, "running job")} will be told to end; what they have written stays`);
  if (waiting) parts.push(`${count(waiting, "job")} will not start`);
  return `${parts.join(", and ")}. This cannot be undone.`;
}

/** Buttons for what can be done to some jobs; `done` is called when the grid has said what it did. */
export function Wishes({ records, done }) {
  const [asked, ask] = useState(null);
  const [said, say] = useState("");
  const fit = (wish) => records.filter((record) => wish.from.includes(record.state));

  async function go(wish) {
    ask(null);
    const wanted = fit(wish).map((record) => record.job_id);
    try {
      const answer = await post(`/v1/jobs/${wish.kind}`, { job_ids: wanted });
      const left = wanted.length - answer.job_ids.length;
      say(`${wish.label}: ${count(answer.job_ids.length, "job")}${left ? `; ${left} had changed meanwhile` : ""}.`);
      done();
    } catch (error) {
      say(error.message);
    }
  }

  return html`<span class="buttons">
    ${WISHES.map((wish) => html`<button type="button" disabled=${!fit(wish).length}
        class=${wish.kind === "cancel" ? "danger" : ""}
        onClick=${() => (wish.asks ? ask(wish) : go(wish))}>${wish.label}</button>`)}
    <span role="status">${said}</span>
    ${asked && html`<${Confirm} text=${what(asked.kind, fit(asked))} action="Cancel ${count(fit(asked).length, "job")}"
        onYes=${() => go(asked)} onNo=${() => ask(null)} />`}
  </span>`;
}

// The output of a rank, as it is written. Only the end of a long output is kept, and very long lines are cut.

import { follow } from "../api.js";
import { html, useEffect, useRef, useState } from "../ui.js";

const MOST_KEPT = 200_000;
const MOST_LINE = 2_000;

/** The end of a text, with long lines cut, because they would freeze the page. */
function shortened(text) {
  const kept = text.length > MOST_KEPT ? `… ${(text.length - MOST_KEPT).toLocaleString()} characters omitted\n${text.slice(-MOST_KEPT)}` : text;
  return kept.split("\n").map((line) => (line.length > MOST_LINE ? `${line.slice(0, MOST_LINE)} … (${line.length.toLocaleString()} characters)` : line)).join("\n");
}

export function Output({ record }) {
  const [rank, choose] = useState(0);
  const [stream, turn] = useState("out");
  const [text, write] = useState("");
  const [status, setStatus] = useState("");
  const box = useRef(null);
  const { job_id: jobId, attempt } = record;

  useEffect(() => {
    const stop = new AbortController();
    const decoder = new TextDecoder();
    let whole = "";
    let bytes = 0;
    let frame = 0;
    let pause = 1000;
    let timer = 0;
    const show = () => {
      frame = 0;
      write(shortened(whole));
    };
    const add = (part) => {
      bytes += part.length;
      whole += decoder.decode(part, { stream: true });
      if (whole.length > 4 * MOST_KEPT) whole = whole.slice(-2 * MOST_KEPT);
      frame ||= requestAnimationFrame(show);
    };
    async function go() {
      try {
        setStatus("live");
        await follow(jobId, { rank, stream, offset: bytes, signal: stop.signal, write: add });
        setStatus("complete");
      } catch (error) {
        if (stop.signal.aborted) return;
        if (error.status === 410) {
          setStatus(error.message);
          return;
        }
        setStatus("connection lost; retrying");
        timer = setTimeout(go, pause);
        pause = Math.min(2 * pause, 10_000);
      }
    }
    write("");
    go();
    return () => {
      stop.abort();
      clearTimeout(timer);
      cancelAnimationFrame(frame);
    };
  }, [jobId, attempt, rank, stream]);

  // Scroll to the end, unless the user has scrolled up to read.
  const atEnd = box.current ? box.current.scrollHeight - box.current.scrollTop - box.current.clientHeight < 40 : true;
  useEffect(() => {
    if (atEnd && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [text]);

  const ranks = record.request.program.ranks === "each-node" ? record.request.nodes : record.places.length;
  return html`<section class="card"><h2>Output</h2>
    <p class="filters">
      <label>Rank <input type="number" min="0" max=${Math.max(0, ranks - 1)} value=${rank} size="5"
        onChange=${(event) => choose(Math.max(0, Math.min(ranks - 1, Number(event.target.value) || 0)))} /></label>
      <label>Stream <select value=${stream} onChange=${(event) => turn(event.target.value)}>
        <option value="out">output</option><option value="err">errors</option></select></label>
      <span class="hint" role="status">${status}</span>
    </p>
    <pre class="output" ref=${box} tabindex="0" aria-label="Output of rank ${rank}">${text || "No output yet."}</pre>
  </section>`;
}

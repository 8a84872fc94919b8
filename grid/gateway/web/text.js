// Format numbers, durations and times for people. Nothing here touches the page.

const SPANS = [[86_400_000, "d"], [3_600_000, "h"], [60_000, "min"], [1000, "s"]];

/** A duration in milliseconds as text, like `span_text` in site/times.py: "58 s", "3 min 45 s", "2 h 10 min". */
export function span(ms) {
  if (ms === null || ms === undefined) return "–";
  const sign = ms < 0 ? "-" : "";
  let rest = Math.round(Math.abs(ms));
  if (rest === 0) return "0 s";
  if (rest < 1000) return `${sign}${rest} ms`;
  if (rest < 9950) return `${sign}${Math.round(rest / 100) / 10} s`;
  const largest = SPANS.findIndex(([unit]) => rest + 500 >= unit);
  const [step] = SPANS[largest + 1] ?? SPANS.at(-1);
  rest = Math.round(rest / step) * step;
  const parts = [];
  for (const [unit, name] of SPANS) {
    const whole = Math.floor(rest / unit);
    if (whole) parts.push(`${whole} ${name}`);
    rest -= whole * unit;
  }
  return sign + parts.join(" ");
}

const sameDay = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });
const otherDay = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });

/** A time in the browser's time zone, without the date if it is today. */
export function when(ms, now = Date.now()) {
  if (ms === null || ms === undefined) return "–";
  const date = new Date(ms);
  return (new Date(now).toDateString() === date.toDateString() ? sameDay : otherDay).format(date);
}

/** A time in UTC, shown as a tooltip. */
export const absolute = (ms) => (ms === null || ms === undefined ? "" : new Date(ms).toISOString());

export const count = (number, one, many = `${one}s`) => `${number.toLocaleString()} ${number === 1 ? one : many}`;

export function bytes(number) {
  for (const [unit, name] of [[2 ** 30, "GB"], [2 ** 20, "MB"], [2 ** 10, "kB"]]) {
    if (number >= unit) return `${(number / unit).toFixed(1)} ${name}`;
  }
  return `${number} B`;
}

/** The name of a job, or its command if it has none. */
export function title(record) {
  const { request } = record;
  return request.name || (request.program?.argv ?? []).join(" ").slice(0, 80) || request.program?.call?.function || "";
}

/** A size of memory in MB (10^6 bytes), with four digits or fewer. */
export function memory(megabytes) {
  const power = [3, 2, 1].find((power) => megabytes >= 1000 ** power) ?? 0;
  return `${Number((megabytes / 1000 ** power).toPrecision(4))} ${["MB", "GB", "TB", "PB"][power]}`;
}

/** The name of a resource that a site counts, and an amount of it. */
export const resourceTitle = (name) => ({ cores: "Cores", memory_mb: "Memory", gpus: "GPUs" })[name] ?? name;
export const amountOf = (name, amount) => (name === "memory_mb" ? memory(amount) : amount.toLocaleString());

/** What each chunk of a job asks for, like `chunk_text` in site/resources/text.py. */
export function chunkText(chunk) {
  const { cores = 1, memory_mb: megabytes = 0, gpus = 0, gpu_type: type = "", others = [], labels = [] } = chunk;
  const words = [cores === 0 ? "a whole node" : count(cores, "core")];
  if (megabytes) words.push(memory(megabytes));
  if (gpus) words.push(count(gpus, `${type} GPU`.trim()));
  words.push(...others.map(([name, amount]) => `${amount.toLocaleString()} ${name}`));
  const text = words.join(", ") + (labels.length ? ` with ${labels.join(" and ")}` : "");
  return text + (chunk.per_node ? `, ${chunk.per_node} per node` : "") + (chunk.exclusive && cores ? ", no other job on its nodes" : "");
}

/** Whether a job asks for parts of nodes. */
export const asksForParts = ({ chunk }) => chunk !== undefined && (chunk.cores ?? 1) > 0;

/** The size of a job: its nodes, or its chunks. */
export const sizeOf = (request) => (asksForParts(request) ? count(request.nodes, "chunk") : request.nodes.toLocaleString());

/** The largest number of nodes on which a job can be, like `most_nodes` in site/resources/chunks.py. */
export const mostNodes = ({ nodes, chunk }) => Math.ceil(nodes / (chunk?.per_node || 1));

export const places = (list) => list.map(([site, nodes]) => `${site} (${nodes})`).join(" + ") || "–";

/** The needs of a job on shared nodes, as written after --resources. */
export function needs(resources) {
  const parts = ["cpu", "network", "disk", "memory"].filter((name) => resources[name]);
  return parts.map((name) => `${name}=${resources[name]}`).join(",");
}

/** The measured slowdown of a job on shared nodes; empty until it has ended, or if no such job has run alone. */
export function measuredSlowdown({ real, alone_ms: alone, alone_runs: runs }) {
  if (real === null) return "";
  return `; measured: ${real.toFixed(2)} times as long as alone (${span(alone)}, ${count(runs, "run")})`;
}

/** When the processes of a job ended, by its machines' clocks, or else when the grid learned of it (site/times.py). */
export function endOf(record) {
  const { start_ms: start, end_ms: reported, ran_ms: ran } = record;
  if (start === null || reported === null || !ran) return reported;
  return start <= ran[1] && ran[1] <= reported ? ran[1] : reported;
}

/** The state of a job, or its outcome once it has ended. */
export const stateOf = (record) => (record.state === "ended" ? record.outcome || "ended" : record.state);

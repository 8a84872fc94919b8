// Numbers, spans and instants as people read them. Nothing here touches the page.

const SPANS = [[86_400_000, "d"], [3_600_000, "h"], [60_000, "min"], [1000, "s"]];

/** A span of milliseconds, as `span_text` in site/times.py writes it: "58 s", "3 min 45 s", "2 h 10 min". */
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

/** An instant in the zone of who looks; the day is left out if it is today. */
export function when(ms, now = Date.now()) {
  if (ms === null || ms === undefined) return "–";
  const date = new Date(ms);
  return (new Date(now).toDateString() === date.toDateString() ? sameDay : otherDay).format(date);
}

/** The same instant everywhere: for who points at a time. */
export const absolute = (ms) => (ms === null || ms === undefined ? "" : new Date(ms).toISOString());

export const count = (number, one, many = `${one}s`) => `${number.toLocaleString()} ${number === 1 ? one : many}`;

export function bytes(number) {
  for (const [unit, name] of [[2 ** 30, "GB"], [2 ** 20, "MB"], [2 ** 10, "kB"]]) {
    if (number >= unit) return `${(number / unit).toFixed(1)} ${name}`;
  }
  return `${number} B`;
}

/** What a job is called: its name, or its command. */
export function title(record) {
  const { request } = record;
  return request.name || (request.program?.argv ?? []).join(" ").slice(0, 80) || request.program?.call?.function || "";
}

export const places = (list) => list.map(([site, nodes]) => `${site} (${nodes})`).join(" + ") || "–";

/** What a job needs of the nodes that it shares, as it is written behind --resources. */
export function needs(resources) {
  const parts = ["cpu", "network", "disk", "memory"].filter((name) => resources[name]);
  return parts.map((name) => `${name}=${resources[name]}`).join(",");
}

/** What sharing its nodes really did to a job; nothing before its end, or if no such job has run alone. */
export function really({ real, alone_ms: alone, alone_runs: runs }) {
  if (real === null) return "";
  return `; it actually took ${real.toFixed(2)} times as long (alone: ${span(alone)}, ${count(runs, "run")})`;
}

/** How a job is, in a word: its outcome once it has ended. */
/** When the processes of a job ended, by the clocks of its machines, else when its end was heard (site/times.py). */
export function endOf(record) {
  const { start_ms: start, end_ms: heard, ran_ms: ran } = record;
  if (start === null || heard === null || !ran) return heard;
  return start <= ran[1] && ran[1] <= heard ? ran[1] : heard;
}

export const stateOf = (record) => (record.state === "ended" ? record.outcome || "ended" : record.state);

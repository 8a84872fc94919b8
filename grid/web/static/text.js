// Numbers, spans and instants as people read them. Nothing here touches the page.

const SPANS = [[86_400_000, "d"], [3_600_000, "h"], [60_000, "min"], [1000, "s"]];

/** A span of milliseconds with its two largest units: "2 h 5 min", "3.2 s". */
export function span(ms) {
  if (ms === null || ms === undefined) return "–";
  const sign = ms < 0 ? "−" : "";
  let rest = Math.abs(ms);
  if (rest < 1000) return `${sign}${Math.round(rest)} ms`;
  if (rest < 10_000) return `${sign}${(rest / 1000).toFixed(1)} s`;
  rest = Math.round(rest / 1000) * 1000;
  const at = SPANS.findIndex(([unit]) => rest >= unit);
  const [unit, name] = SPANS[at];
  const whole = Math.floor(rest / unit);
  if (at === SPANS.length - 1) return `${sign}${whole} ${name}`;
  const [next, nextName] = SPANS[at + 1];
  const left = Math.floor((rest - whole * unit) / next);
  return `${sign}${whole} ${name}${left ? ` ${left} ${nextName}` : ""}`;
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

/** How a job is, in a word: its outcome once it has ended. */
/** When the processes of a job ended, by the clocks of its machines, else when its end was heard (site/times.py). */
export function endOf(record) {
  const { start_ms: start, end_ms: heard, ran_ms: ran } = record;
  if (start === null || heard === null || !ran) return heard;
  return start <= ran[1] && ran[1] <= heard ? ran[1] : heard;
}

export const stateOf = (record) => (record.state === "ended" ? record.outcome || "ended" : record.state);

// The current time on the grid's clock. All times come from that clock, and the clock of this computer may be wrong.

const DIFFER_MS = 5000; // smaller differences are ignored
const SLOW_MS = 4000; // the answer to a slower request is not accurate enough
const AGAIN_MS = 2000; // answers contain whole seconds, so smaller changes are noise

let ahead = 0;
const listeners = new Set();

/** The current time, in Unix milliseconds. */
export const gridNow = () => Date.now() + ahead;

/** How far the grid's clock is ahead of this computer's, in milliseconds; 0 while they agree. */
export const gridAhead = () => ahead;

/** Call `listener` when the difference of the clocks changes. */
export function onClock(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** Compare the clocks by the `Date` header of an answer that took `tookMs`. */
export function heardDate(date, tookMs) {
  const sent = Date.parse(date ?? "");
  if (Number.isNaN(sent) || tookMs > SLOW_MS) return;
  // On average, the date is half a second old when it is sent, and the answer takes half of the request's time.
  const difference = sent + 500 + tookMs / 2 - Date.now();
  const next = Math.abs(difference) > DIFFER_MS ? difference : 0;
  if (Math.abs(next - ahead) < AGAIN_MS) return;
  ahead = next;
  listeners.forEach((listener) => listener());
}

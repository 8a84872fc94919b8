// The time now, by the clock of the grid: all instants come from there, and the clock of who looks may be wrong.

const DIFFER_MS = 5000; // clocks that are closer than that count as the same
const SLOW_MS = 4000; // an answer that took longer says too little
const AGAIN_MS = 2000; // an answer tells whole seconds: what changes by less has not changed

let ahead = 0;
const listeners = new Set();

/** The time now, in Unix milliseconds. */
export const gridNow = () => Date.now() + ahead;

/** By how many milliseconds the grid's clock is ahead of this computer's; 0 while they agree. */
export const gridAhead = () => ahead;

/** Call `listener` when it turns out that the clocks differ, or agree again. */
export function onClock(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** Take in the `Date` of an answer, for which this page has waited so long. */
export function heardDate(date, tookMs) {
  const told = Date.parse(date ?? "");
  if (Number.isNaN(told) || tookMs > SLOW_MS) return;
  // Seconds are told whole, and the answer was on its way: half of each in the mean.
  const found = told + 500 + tookMs / 2 - Date.now();
  const next = Math.abs(found) > DIFFER_MS ? found : 0;
  if (Math.abs(next - ahead) < AGAIN_MS) return;
  ahead = next;
  listeners.forEach((listener) => listener());
}

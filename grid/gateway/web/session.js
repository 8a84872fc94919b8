// The page's half of a login's secret. The browser sends the other half in a cookie that no page can read. A cookie also
// goes to every other port of this host, where a job may listen, so one half is useless without the other.

const NAME = "login";
const WAIT_MS = 300;

const tabs = new BroadcastChannel(NAME);
let key = sessionStorage.getItem(NAME) ?? "";

function set(newKey) {
  key = newKey;
  if (key) sessionStorage.setItem(NAME, key);
  else sessionStorage.removeItem(NAME);
}

export const loginHeaders = () => (key ? { "Gridweave-Login": key } : {});

/** Store the key of a new login, or "" after a logout, in all tabs, because they share the cookie. */
export function keepKey(newKey) {
  set(newKey);
  tabs.postMessage({ key });
}

tabs.addEventListener("message", ({ data }) => {
  if (data.key !== undefined) set(data.key);
  else if (key) tabs.postMessage({ key });
});

/** Ask the other tabs for the key if this tab has none; resolves to true if one of them sent it. */
export function askTabs() {
  if (key) return Promise.resolve(false);
  return new Promise((resolve) => {
    const answered = () => resolve(key !== "");
    tabs.addEventListener("message", answered, { once: true });
    setTimeout(answered, WAIT_MS);
    tabs.postMessage({});
  });
}

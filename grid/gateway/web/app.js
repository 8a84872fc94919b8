// The frame of all pages: navigation, login, and the connection to the gateway.

import { render } from "./vendor/preact.js";
import { get, onLoggedOut, post, watch } from "./api.js";
import { askTabs, keepKey } from "./session.js";
import { span } from "./text.js";
import { html, notify, useAhead, useEffect, useState } from "./ui.js";
import { GridPage } from "./pages/grid.js";
import { JobPage } from "./pages/job.js";
import { JobsPage } from "./pages/jobs.js";
import { LoginPage } from "./pages/login.js";
import { OutlookPage } from "./pages/outlook.js";
import { QueuePage } from "./pages/queue.js";
import { SchedulePage } from "./pages/schedule.js";
import { UsagePage } from "./pages/usage.js";

const PAGES = [
  ["", "Grid", GridPage],
  ["schedule", "Schedule", SchedulePage],
  ["queue", "Queue", QueuePage],
  ["jobs", "Jobs", JobsPage],
  ["usage", "Usage", UsagePage],
  ["what-if", "What if?", OutlookPage, "operate"],
];

function place() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, target = ""] = path.split("/");
  return { name, target: decodeURIComponent(target), query: new URLSearchParams(query) };
}

function usePlace() {
  const [at, go] = useState(place());
  useEffect(() => {
    const moved = () => {
      go(place());
      document.getElementById("main")?.focus({ preventScroll: true });
    };
    addEventListener("hashchange", moved);
    return () => removeEventListener("hashchange", moved);
  }, []);
  return at;
}

const THEMES = ["system", "light", "dark"];

function useTheme() {
  const [theme, set] = useState(localStorage.getItem("theme") ?? THEMES[0]);
  useEffect(() => {
    localStorage.setItem("theme", theme);
    document.documentElement.dataset.theme = theme;
    dispatchEvent(new Event("themechange"));
  }, [theme]);
  return [theme, () => set(THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length])];
}

/** Log in with the one-time code of a link (`gridweave open`), and remove it from the browser history. */
async function logInByCode() {
  const code = new URLSearchParams(location.hash.slice(1)).get("login");
  if (!code) return;
  history.replaceState(null, "", "/");
  keepKey((await post("/v1/login", { code })).key);
}

function Frame({ who, heard, leave }) {
  const at = usePlace();
  const [theme, turn] = useTheme();
  const pages = PAGES.filter(([, , , scope = "read"]) => scope === "read" || who.scopes.includes(scope));
  const page = pages.find(([name]) => name === at.name);
  const Page = at.name === "job" ? JobPage : (page?.[2] ?? Lost);
  useEffect(() => {
    document.title = `${at.name === "job" ? `Job ${at.target}` : (page?.[1] ?? "Not found")} · gridweave`;
  }, [at.name, at.target]);
  return html`
    <a class="skip" href="#main" onClick=${skip}>Skip to content</a>
    <header>
      <a class="brand" href="#/">gridweave</a>
      <nav aria-label="Pages">${pages.map(([name, title]) => html`
        <a href="#/${name}" aria-current=${name === at.name ? "page" : null}>${title}</a>`)}</nav>
      <span class="heard ${heard}" role="status">${HEARD[heard]}</span>
      <button type="button" class="quiet" onClick=${turn} aria-label="Colours: ${theme}; switch">◐ ${theme}</button>
      ${who.user && html`<span class="who">${who.user}${who.scopes.includes("operate") ? " (operator)" : ""}</span>
        <button type="button" class="quiet" onClick=${leave}>Log out</button>`}
    </header>
    <${WrongClock} />
    <main id="main" tabindex="-1"><${Page} key=${at.name + at.target} at=${at} who=${who} /></main>`;
}

/** A warning above all pages while this computer's clock is wrong. */
function WrongClock() {
  const ahead = useAhead();
  if (!ahead) return null;
  return html`<p class="trouble clock" role="status">This computer’s clock is ${span(Math.abs(ahead))}
    ${" "}${ahead > 0 ? "behind" : "ahead of"} the grid’s. Times on these pages follow the grid’s clock.</p>`;
}

function skip(event) {
  event.preventDefault();
  document.getElementById("main").focus();
}

const HEARD = { live: "● live", away: "○ the gateway does not answer; retrying", begin: "… connecting" };

const Lost = () => html`<h1>Not found</h1><p>There is no such page. Go to the <a href="#/">grid</a>.</p>`;

function App() {
  const [who, know] = useState(null);
  const [heard, hear] = useState("begin");
  const [problem, fail] = useState("");

  const look = () => get("/v1/whoami", {}, { isFirst: true }).then(
    (info) => (fail(""), know(info)),
    async (error) => {
      if (error.status !== 401) (fail(error.message), setTimeout(look, 2000));
      else if (await askTabs()) look();
      else know(false);
    },
  );
  useEffect(() => {
    logInByCode().catch((error) => fail(error.message)).then(look);
    return onLoggedOut(() => know(false));
  }, []);
  useEffect(() => (who ? watch(notify, hear) : undefined), [Boolean(who)]);

  async function leave() {
    await post("/v1/logout", {}).catch(() => {});
    keepKey("");
    know(false);
  }

  if (who === null) return html`<p class="empty" role="status">${problem || "…"}</p>`;
  if (!who) return html`<${LoginPage} problem=${problem} done=${(info) => (fail(""), know(info))} />`;
  return html`<${Frame} who=${who} heard=${heard} leave=${leave} />`;
}

render(html`<${App} />`, document.getElementById("app"));

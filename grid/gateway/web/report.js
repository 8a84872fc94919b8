// A report: schedules of finished runs, drawn as on the pages, and their metrics. `gridweave view` puts this file into one
// file with text.js and gantt.js, so it imports nothing.

function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

function number(value, unit) {
  if (value === null || value === undefined) return "–";
  if (unit === "%") return `${(100 * value).toFixed(1)}%`;
  return unit === "time" ? span(value) : value.toLocaleString(undefined, { maximumFractionDigits: 3 });
}

function metricsTable({ runs, metrics }) {
  const head = element("tr", {}, element("th", { scope: "col" }, "Metric"),
    ...runs.map((run) => element("th", { scope: "col" }, run.label)));
  const rows = metrics.map(([name, words, unit]) => element("tr", {}, element("th", { scope: "row" }, words),
    ...runs.map((run) => element("td", { class: "number" }, number(run.metrics[name], unit)))));
  const table = element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows));
  return element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Metrics" }, table);
}

/** All charts show the same time span: moving one moves the others. */
function pictures(runs) {
  const schedules = runs.map((run) => new Schedule(run.sites, run.jobs));
  const look = new Look();
  look.show(Math.min(...schedules.map((each) => each.begin)), Math.max(...schedules.map((each) => each.finish)));
  const shown = schedules.map((schedule, index) => {
    const label = `Schedule of ${runs[index].label}: ${schedule.jobs.length} jobs; arrow keys move, plus and minus zoom`;
    const canvas = element("canvas", { tabindex: "0", role: "img", "aria-label": label });
    const details = element("p", { class: "hint", role: "status" }, "Point at a job.");
    const painting = new Painting(canvas.getContext("2d", { alpha: false }));
    return { schedule, canvas, painting, details, chosen: -1 };
  });
  let colours = coloursOfSheet();
  const paint = () => shown.forEach((each) => {
    const { canvas, schedule } = each;
    const { clientWidth, clientHeight } = canvas;
    const ratio = devicePixelRatio || 1;
    const [width, height] = [clientWidth, clientHeight].map((pixels) => Math.round(pixels * ratio));
    if (canvas.width !== width || canvas.height !== height) [canvas.width, canvas.height] = [width, height];
    each.painting.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    each.view = new View(schedule, look.from, look.to, clientWidth, clientHeight, ratio);
    each.painting.draw(each.view, colours, Infinity, each.chosen);
  });
  let frame = 0;
  const soon = () => { frame ||= requestAnimationFrame(() => { frame = 0; paint(); }); };
  shown.forEach((each) => listen(each, look, soon));
  addEventListener("resize", soon);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { colours = coloursOfSheet(); soon(); });
  soon();
  return shown.map(({ canvas, details }, index) => element("section", { class: "card" },
    element("h2", {}, runs[index].label), element("div", { class: "gantt" }, canvas), details));
}

function listen(each, look, soon) {
  const { canvas, details } = each;
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    look.zoom(Math.exp(event.deltaY * 0.0015), event.offsetX / canvas.clientWidth);
    soon();
  }, { passive: false });
  canvas.addEventListener("pointermove", (event) => {
    if (event.buttons) {
      look.pan(-event.movementX / canvas.clientWidth);
      return soon();
    }
    const at = each.view.at(event.offsetX, event.offsetY);
    each.chosen = at < 0 ? -1 : each.view.schedule.job[at];
    details.textContent = at < 0 ? "Point at a job." : words(each.view.schedule.jobs[each.chosen]);
    return soon();
  });
  canvas.addEventListener("keydown", (event) => {
    if (!look.press(event.key)) return;
    event.preventDefault();
    soon();
  });
}

function words([id, , , state, submit, start, end, where]) {
  return `Job ${id}: ${state === "limit" ? "ended at its limit" : state}, on ${places(where)}; waited ${span(start - submit)}, ran ${span(end - start)}.`;
}

const report = JSON.parse(document.getElementById("data").textContent);
document.getElementById("main").append(
  element("h1", {}, "gridweave"), metricsTable(report), ...pictures(report.runs),
  element("p", { class: "hint" }, "Scroll to zoom, drag to move. Each job is drawn on the lowest nodes that were free."),
);

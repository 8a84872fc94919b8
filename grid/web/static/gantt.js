// The schedule as a picture: jobs as rectangles on nodes, over time. Data and drawing, nothing of the page around it.
//
// Which node a job had is not kept for ever, so that a job stands on the lowest nodes of its site that are free
// from its start on. Rectangles lie in flat arrays: a hundred thousand of them are drawn in a few milliseconds.

const GAP = 26; // above each site, for its name
const AXIS = 28;
const LEAST_WIDTH = 0.6;

export class Schedule {
  /** `sites` are pairs of a name and its nodes; `jobs` are arrays as the gateway sends them (ScheduledJob). */
  constructor(sites, jobs) {
    this.sites = sites.map(([name, nodes]) => ({ name, nodes: Math.max(nodes, 1) }));
    const known = new Map(this.sites.map((site, index) => [site.name, index]));
    const started = jobs.filter((job) => job[5] !== null);
    started.sort((one, other) => one[5] - other[5] || one[0] - other[0]);
    this.jobs = started;
    const free = this.sites.map((site) => new Float64Array(site.nodes).fill(-Infinity));
    const rects = [];
    started.forEach((job, index) => {
      for (const [name, nodes] of job[7]) {
        const site = known.get(name);
        if (site !== undefined) place(rects, free[site], site, nodes, index, job[5], Math.max(job[6], job[5] + 1));
      }
    });
    this.n = rects.length;
    this.start = Float64Array.from(rects, (rect) => rect.start);
    this.end = Float64Array.from(rects, (rect) => rect.end);
    this.site = Int32Array.from(rects, (rect) => rect.site);
    this.first = Int32Array.from(rects, (rect) => rect.first);
    this.nodes = Int32Array.from(rects, (rect) => rect.nodes);
    this.job = Int32Array.from(rects, (rect) => rect.job);
    // The latest end of all up to each rectangle: those before the first that reaches into view need no look.
    this.reach = new Float64Array(this.n);
    let latest = -Infinity;
    for (let at = 0; at < this.n; at += 1) this.reach[at] = latest = Math.max(latest, this.end[at]);
    this.begin = this.n ? this.start[0] : 0;
    this.finish = this.n ? latest : 1;
    this.rows = this.sites.reduce((sum, site) => sum + site.nodes, 0);
  }

  /** The rectangles that a span of time touches: from the first that may, to the last that begins before its end. */
  between(from, to) {
    return [lowest(this.reach, (end) => end > from), lowest(this.start, (start) => start > to)];
  }
}

/** Put a job on the lowest free nodes of a site, as one rectangle for each run of neighbours. */
function place(rects, free, site, nodes, job, start, end) {
  let left = nodes;
  let first = -1;
  for (let node = 0; node <= free.length && (left > 0 || first >= 0); node += 1) {
    const takes = node < free.length && left > 0 && free[node] <= start;
    if (takes) {
      if (first < 0) first = node;
      free[node] = end;
      left -= 1;
    } else if (first >= 0) {
      rects.push({ site, first, nodes: node - first, job, start, end });
      first = -1;
    }
  }
}

function lowest(values, holds) {
  let [low, high] = [0, values.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (holds(values[middle])) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** Where everything is on a canvas: `from` and `to` are instants, `width` and `height` pixels. */
export class View {
  constructor(schedule, from, to, width, height) {
    Object.assign(this, { schedule, from, to, width, height });
    const room = Math.max(1, height - AXIS - GAP * schedule.sites.length);
    this.row = Math.min(24, room / Math.max(1, schedule.rows));
    this.tops = [];
    let top = AXIS;
    for (const site of schedule.sites) {
      this.tops.push(top + GAP);
      top += GAP + site.nodes * this.row;
    }
  }

  x(instant) {
    return ((instant - this.from) / (this.to - this.from)) * this.width;
  }

  instant(x) {
    return this.from + (x / this.width) * (this.to - this.from);
  }

  /** The rectangle under a point, or -1. */
  at(x, y) {
    const { schedule } = this;
    const instant = this.instant(x);
    const slack = ((this.to - this.from) / this.width) * 2;
    const [first, last] = schedule.between(instant - slack, instant + slack);
    for (let at = last - 1; at >= first; at -= 1) {
      if (schedule.end[at] + slack < instant) continue;
      const top = this.tops[schedule.site[at]] + schedule.first[at] * this.row;
      if (y >= top && y < top + Math.max(2, schedule.nodes[at] * this.row)) return at;
    }
    return -1;
  }
}

const STEPS = [1e3, 5e3, 15e3, 6e4, 3e5, 9e5, 36e5, 108e5, 432e5, 864e5, 6048e5, 26298e5];

/** Draw a view; `colours` are those of the sheet, `now` the line of now, `chosen` the index of a job, or -1. */
export function draw(context, view, colours, now, chosen) {
  const { schedule, width, height } = view;
  context.fillStyle = colours.paper;
  context.fillRect(0, 0, width, height);
  drawSites(context, view, colours);
  const drawn = drawJobs(context, view, colours, now, chosen);
  drawAxis(context, view, colours, now);
  if (!schedule.n) {
    context.fillStyle = colours.faint;
    context.fillText("No job has started in this time.", 12, AXIS + 20);
  }
  return drawn;
}

function drawSites(context, view, colours) {
  context.font = "13px system-ui, sans-serif";
  context.textBaseline = "middle";
  view.schedule.sites.forEach((site, index) => {
    context.fillStyle = colours.shade;
    context.fillRect(0, view.tops[index], view.width, site.nodes * view.row);
    context.fillStyle = colours.ink;
    context.fillText(`${site.name} · ${site.nodes} nodes`, 8, view.tops[index] - GAP / 2);
  });
}

function drawJobs(context, view, colours, now, chosen) {
  const { schedule, row } = view;
  const scale = view.width / (view.to - view.from);
  const [first, last] = schedule.between(view.from, view.to);
  // Of what is narrower than a pixel, one in a row of pixels is enough: up to where each row is filled.
  const filled = schedule.sites.map((site) => new Float64Array(site.nodes).fill(-1));
  let drawn = 0;
  for (let at = first; at < last; at += 1) {
    if (schedule.end[at] <= view.from) continue;
    const site = schedule.site[at];
    const left = Math.max(-2, (schedule.start[at] - view.from) * scale);
    const right = Math.min(view.width + 2, (schedule.end[at] - view.from) * scale);
    const node = schedule.first[at];
    if (right <= filled[site][node] + LEAST_WIDTH / 2) continue;
    filled[site][node] = Math.max(right, left + LEAST_WIDTH);
    const job = schedule.job[at];
    context.fillStyle = colours.tones[(schedule.jobs[job][0] * 7) % 12];
    const top = view.tops[site] + node * row;
    const tall = Math.max(schedule.nodes[at] * row - (row > 4 ? 1 : 0), 0.5);
    const wide = Math.max(right - left - (right - left > 4 ? 1 : 0), LEAST_WIDTH);
    context.globalAlpha = schedule.start[at] > now ? 0.45 : 1; // what is only expected is pale
    context.fillRect(left, top, wide, tall);
    if (job === chosen) outline(context, left, top, wide, tall, colours);
    if (wide > 40 && tall > 11) label(context, schedule.jobs[job], left, top, wide, tall);
    drawn += 1;
  }
  context.globalAlpha = 1;
  if (chosen >= 0) joinParts(context, view, colours, chosen);
  return drawn;
}

function outline(context, left, top, wide, tall, colours) {
  context.strokeStyle = colours.ink;
  context.lineWidth = 2;
  context.strokeRect(left, top, wide, tall);
}

function label(context, job, left, top, wide, tall) {
  context.globalAlpha = 1;
  context.fillStyle = "#000";
  context.font = "11px system-ui, sans-serif";
  context.fillText(String(job[0]), Math.max(left, 0) + 4, top + tall / 2, wide - 8);
}

/** Join the parts of a job on several sites by a line. */
function joinParts(context, view, colours, chosen) {
  const { schedule, row } = view;
  const parts = [];
  const [first, last] = schedule.between(view.from, view.to);
  for (let at = first; at < last; at += 1) if (schedule.job[at] === chosen) parts.push(at);
  if (parts.length < 2) return;
  context.strokeStyle = colours.ink;
  context.lineWidth = 1;
  context.beginPath();
  for (const at of parts) {
    const x = Math.max(3, view.x(schedule.start[at]));
    context.lineTo(x, view.tops[schedule.site[at]] + (schedule.first[at] + schedule.nodes[at] / 2) * row);
  }
  context.stroke();
}

function drawAxis(context, view, colours, now) {
  const span = view.to - view.from;
  const step = STEPS.find((each) => span / each <= Math.max(2, view.width / 110)) ?? STEPS.at(-1);
  context.fillStyle = colours.paper;
  context.fillRect(0, 0, view.width, AXIS);
  context.font = "12px system-ui, sans-serif";
  context.textBaseline = "middle";
  const zone = Math.abs(view.to) < 1e11 ? 0 : new Date(view.from).getTimezoneOffset() * 60_000;
  for (let at = Math.ceil((view.from - zone) / step) * step + zone; at < view.to; at += step) {
    const x = view.x(at);
    context.fillStyle = colours.line;
    context.fillRect(x, AXIS - 6, 1, view.height);
    context.fillStyle = colours.faint;
    context.fillText(mark(at, step), x + 4, AXIS / 2);
  }
  if (now >= view.from && now <= view.to) {
    context.fillStyle = colours.bad;
    context.fillRect(view.x(now) - 1, 0, 2, view.height);
    context.fillText("now", view.x(now) + 4, AXIS / 2);
  }
}

function mark(instant, step) {
  // A run that is over counts from its beginning.
  if (Math.abs(instant) < 1e11) return step >= 864e5 ? `day ${Math.round(instant / 864e5)}` : `${+(instant / 36e5).toFixed(3)} h`;
  const date = new Date(instant);
  if (step >= 864e5) return date.toLocaleDateString(undefined, { month: "short", day: "numeric" });
  return date.toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit", second: step < 6e4 ? "2-digit" : undefined });
}

// The schedule as a picture: jobs as rectangles on nodes, over time. Data and drawing, nothing of the page around it.
//
// Which node a job had is not kept for ever, so that a job stands on the lowest nodes of its site that are free
// from its start on. Rectangles lie in flat arrays: a hundred thousand of them are drawn in a few milliseconds.

const GAP = 26; // above each site, for its name
const AXIS = 28;
const LEAST_WIDTH = 0.6;
const STRIPED = 24; // of 25 kinds of rectangles: twelve colours, the same pale, and stripes

/** Nodes that are reserved, or kept under a lease: as a job without a user, drawn with stripes. */
export const KEPT = ["reservation", "lease"];

/** The colours of the sheet, as a canvas wants them. */
export function coloursOfSheet() {
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(`--${name}`).trim();
  const named = Object.fromEntries(["paper", "ink", "faint", "line", "shade", "bad"].map((name) => [name, of(name)]));
  return { ...named, tones: Array.from({ length: 12 }, (_, index) => of(`t${index}`)) };
}

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
    this.tone = Uint8Array.from(rects, (rect) =>
      KEPT.includes(started[rect.job][3]) ? STRIPED : (started[rect.job][0] * 7) % 12);
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
  const { schedule } = view;
  const found = inView(view, now);
  paint(context, view, colours, found);
  nameSites(context, view, colours);
  decorate(context, view, colours, found, chosen);
  drawAxis(context, view, colours, now);
  if (!schedule.n) {
    context.fillStyle = colours.faint;
    context.fillText("No job has started in this time.", 12, AXIS + 20);
  }
  return found.reduce((sum, each) => sum + each.length, 0);
}

/** Put all that is no text on the canvas, pixel by pixel: a hundred thousand calls to it would take too long. */
function paint(context, view, colours, found) {
  const { width: across, height: down } = context.canvas;
  const ratio = across / view.width;
  const image = context.createImageData(across, down);
  const pixels = new Uint32Array(image.data.buffer);
  const shade = pixelOf(context, colours.shade);
  pixels.fill(pixelOf(context, colours.paper));
  view.schedule.sites.forEach((site, index) => {
    const [top, end] = [view.tops[index], view.tops[index] + site.nodes * view.row].map((y) => Math.round(y * ratio));
    pixels.fill(shade, top * across, end * across);
  });
  for (const [kind, rectangles] of found.entries()) {
    const tone = pixelOf(context, kind === STRIPED ? colours.faint : colours.tones[kind % 12]);
    const pixel = kind < 12 ? tone : mixed(tone, shade); // what is only expected is pale
    for (const at of rectangles) {
      box(view, at);
      const [left, right] = [Math.max(0, Math.floor(BOX[0] * ratio)), Math.min(across, Math.ceil((BOX[0] + BOX[2]) * ratio))];
      const top = Math.max(0, Math.floor(BOX[1] * ratio));
      const end = Math.min(down, Math.max(top + 1, Math.floor((BOX[1] + BOX[3]) * ratio)));
      for (let y = top; y < end; y += 1) {
        const row = y * across;
        if (kind === STRIPED) for (let x = left; x < right; x += 1) pixels[row + x] = (x + y) % 8 < 2 ? tone : shade;
        else for (let x = row + left; x < row + right; x += 1) pixels[x] = pixel; // most are a pixel or two wide
      }
    }
  }
  context.putImageData(image, 0, 0);
}

/** A colour of the sheet as a pixel, opaque, in the order of bytes that images have. */
function pixelOf(context, colour) {
  context.fillStyle = colour; // any way to write it becomes #rrggbb by that
  const value = Number.parseInt(context.fillStyle.slice(1), 16);
  return (0xff000000 | ((value & 255) << 16) | (value & 0xff00) | (value >> 16)) >>> 0;
}

const mixed = (one, other) => [0, 8, 16].reduce(
  (sum, shift) => sum + (Math.round(0.45 * ((one >>> shift) & 255) + 0.55 * ((other >>> shift) & 255)) << shift >>> 0), 0xff000000);

function nameSites(context, view, colours) {
  context.font = "13px system-ui, sans-serif";
  context.textBaseline = "middle";
  context.fillStyle = colours.ink;
  view.schedule.sites.forEach((site, index) => context.fillText(`${site.name} · ${site.nodes} nodes`, 8, view.tops[index] - GAP / 2));
}

/** Which rectangles are seen, in 25 lists: by colour, those that are only expected apart, and those with stripes. */
function inView(view, now) {
  const { schedule } = view;
  const scale = view.width / (view.to - view.from);
  const [first, last] = schedule.between(view.from, view.to);
  const found = Array.from({ length: STRIPED + 1 }, () => []);
  // Of what is narrower than a pixel, one in a row of pixels is enough: up to where each row is filled.
  const filled = schedule.sites.map((site) => new Float64Array(site.nodes).fill(-1));
  for (let at = first; at < last; at += 1) {
    if (schedule.end[at] <= view.from) continue;
    const [site, node] = [schedule.site[at], schedule.first[at]];
    const right = (schedule.end[at] - view.from) * scale;
    if (right <= filled[site][node] + LEAST_WIDTH) continue;
    filled[site][node] = right;
    const tone = schedule.tone[at];
    found[tone + (tone < 12 && schedule.start[at] > now ? 12 : 0)].push(at);
  }
  return found;
}

const BOX = new Float64Array(4); // of the rectangle at hand: left, top, width, height

function box(view, at) {
  const { schedule, row } = view;
  const scale = view.width / (view.to - view.from);
  const left = Math.max(-2, (schedule.start[at] - view.from) * scale);
  const wide = Math.min(view.width + 2, (schedule.end[at] - view.from) * scale) - left;
  const tall = schedule.nodes[at] * row;
  BOX[0] = left;
  BOX[1] = view.tops[schedule.site[at]] + schedule.first[at] * row;
  BOX[2] = Math.max(wide - (wide > 4 ? 1 : 0), LEAST_WIDTH);
  BOX[3] = Math.max(tall - (row > 4 ? 1 : 0), 0.5);
}

/** Numbers in rectangles that are large enough, a line around the job that is chosen, and one that joins its parts. */
function decorate(context, view, colours, found, chosen) {
  const { schedule } = view;
  for (const at of found.flat()) {
    box(view, at);
    const [left, top, wide, tall] = BOX;
    if (schedule.job[at] === chosen) outline(context, left, top, wide, tall, colours);
    if (wide > 40 && tall > 11) label(context, schedule.jobs[schedule.job[at]], left, top, wide, tall, colours);
  }
  if (chosen >= 0) joinParts(context, view, colours, chosen);
}

function outline(context, left, top, wide, tall, colours) {
  context.strokeStyle = colours.ink;
  context.lineWidth = 2;
  context.strokeRect(left, top, wide, tall);
}

function label(context, job, left, top, wide, tall, colours) {
  const isKept = KEPT.includes(job[3]);
  context.font = "11px system-ui, sans-serif";
  const [text, at] = [isKept ? `${job[3]} ${job[0] || ""}` : String(job[0]), Math.max(left, 0) + 4];
  if (isKept) {
    context.fillStyle = colours.shade;
    context.fillRect(at - 3, top + tall / 2 - 7, Math.min(wide - 8, context.measureText(text).width) + 6, 14);
  }
  context.fillStyle = isKept ? colours.ink : "#000";
  context.fillText(text, at, top + tall / 2, wide - 8);
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
  if (Math.abs(instant) < 1e11) {
    const [unit, name] = [[864e5, "d"], [36e5, "h"], [6e4, "min"]].find(([each]) => step >= each) ?? [1e3, "s"];
    return `${+(instant / unit).toFixed(1)} ${name}`;
  }
  const date = new Date(instant);
  if (step >= 864e5) return date.toLocaleDateString(undefined, { month: "short", day: "numeric" });
  return date.toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit", second: step < 6e4 ? "2-digit" : undefined });
}

// The chart of the schedule: jobs as rectangles on nodes, over time. This file has the data and the drawing; the page is
// elsewhere.
//
// The grid does not record forever which nodes a job had, so each job is drawn on the lowest nodes of its site that are
// free from its start on. Rectangles are stored in flat arrays and painted pixel by pixel. When the view moves, the
// painted pixels are shifted by whole columns, and only the columns that come into view are painted.

const GAP = 26; // above each site, for its name
const AXIS = 28;
const STRIPED = 24; // of 25 kinds of rectangles: twelve colours, twelve pale ones for expected jobs, and stripes

/** States of entries for reserved nodes and nodes under a lease: jobs without a user, drawn with stripes. */
export const KEPT = ["reservation", "lease"];

/** Whether the job has not started yet, even if its expected start has passed. */
export const isExpected = ([, , , state, , start], now) => state === "waiting" || start > now;

/** The colours of the style sheet, for a canvas. */
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
    this.waits = Uint8Array.from(rects, (rect) => isExpected(started[rect.job], Infinity));
    // For each rectangle, the latest end of all rectangles up to it, to skip those that end before the view.
    this.reach = new Float64Array(this.n);
    let latest = -Infinity;
    for (let at = 0; at < this.n; at += 1) this.reach[at] = latest = Math.max(latest, this.end[at]);
    this.begin = this.n ? this.start[0] : 0;
    this.finish = this.n ? latest : 1;
    this.rows = this.sites.reduce((sum, site) => sum + site.nodes, 0);
  }

  /** The range of rectangles that may overlap a time span: their first index, and the index after the last. */
  between(from, to) {
    return [lowest(this.reach, (end) => end > from), lowest(this.start, (start) => start > to)];
  }
}

/** Place a job on the lowest free nodes of a site, with one rectangle per run of adjacent nodes. */
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

/**
 * The part of a schedule that a canvas shows. `from` and `to` are times, `width` and `height` are in CSS pixels, and
 * `ratio` is the number of screen pixels per CSS pixel. A view begins at a whole column of pixels, counted from the first
 * start.
 */
export class View {
  constructor(schedule, from, to, width, height, ratio = 1) {
    const span = Math.max(1, Math.round(to - from)); // a whole number, so that it stays the same when the view moves
    Object.assign(this, { schedule, span, width, height, ratio });
    this.scale = (width * ratio) / span; // columns of pixels per millisecond
    this.column = Math.round((from - schedule.begin) * this.scale);
    this.from = schedule.begin + this.column / this.scale;
    this.to = this.from + span;
    const available = Math.max(1, height - AXIS - GAP * schedule.sites.length);
    this.row = Math.min(24, available / Math.max(1, schedule.rows));
    this.tops = [];
    let top = AXIS;
    for (const site of schedule.sites) {
      this.tops.push(top + GAP);
      top += GAP + site.nodes * this.row;
    }
  }

  x(instant) {
    return ((instant - this.from) / this.span) * this.width;
  }

  instant(x) {
    return this.from + (x / this.width) * this.span;
  }

  /** The rectangle under a point, or -1. */
  at(x, y) {
    const { schedule } = this;
    const instant = this.instant(x);
    const slack = (this.span / this.width) * 2;
    const [first, last] = schedule.between(instant - slack, instant + slack);
    for (let at = last - 1; at >= first; at -= 1) {
      if (schedule.end[at] + slack < instant) continue;
      const top = this.tops[schedule.site[at]] + schedule.first[at] * this.row;
      if (y >= top && y < top + Math.max(2, schedule.nodes[at] * this.row)) return at;
    }
    return -1;
  }
}

const [SHORTEST, LONGEST] = [100, 100 * 365 * 864e5]; // time spans of a chart, in ms

/** The visible time span; `moved` is whether the user has chosen it. */
export class Look {
  show(from, to, moved = true) {
    Object.assign(this, { from, to, moved });
  }

  zoom(factor, at = 0.5) {
    const middle = this.from + at * (this.to - this.from);
    const width = Math.min(Math.max((this.to - this.from) * factor, SHORTEST), LONGEST);
    this.show(middle - at * width, middle + (1 - at) * width);
  }

  pan(part) {
    const step = part * (this.to - this.from);
    this.show(this.from + step, this.to + step);
  }

  /** Apply the action of a key; return whether the key has one. */
  press(key) {
    const [what, by] = { ArrowLeft: ["pan", -0.2], ArrowRight: ["pan", 0.2], "+": ["zoom", 0.7], "=": ["zoom", 0.7], "-": ["zoom", 1.4] }[key] ?? [];
    if (what) this[what](by);
    return Boolean(what);
  }
}

const STEPS = [1e3, 5e3, 15e3, 6e4, 3e5, 9e5, 36e5, 108e5, 432e5, 864e5, 6048e5, 26298e5];

/** The drawing on one canvas, with its cached pixels. */
export class Painting {
  constructor(context) {
    this.context = context;
    this.drawn = 0; // rectangles painted since the last complete repaint
    this.painted = null; // the view, the colours and the present time of the cached pixels
  }

  /** Draw a view; `colours` are those of the style sheet, `now` is the present time, `chosen` the index of a job, or -1. */
  draw(view, colours, now, chosen) {
    const { context } = this;
    this.paint(view, colours, now);
    drawAxis(context, view, colours, now); // first, because names and numbers are drawn over its lines
    nameSites(context, view, colours);
    decorate(context, view, colours, this.kinds, now, chosen);
    if (!view.schedule.n) {
      context.fillStyle = colours.faint;
      context.fillText("No job started in this period.", 12, AXIS + 20);
    }
  }

  /** Draw everything but text on the canvas; paint only the columns that have come into view. */
  paint(view, colours, now) {
    const { width, height } = this.context.canvas;
    const moved = this.isKept(view, colours, now) ? view.column - this.painted.view.column : width;
    if (Math.abs(moved) >= width) {
      if (this.image?.width !== width || this.image.height !== height) {
        this.image = this.context.createImageData(width, height);
        this.pixels = new Uint32Array(this.image.data.buffer);
      }
      this.kinds = pixelsOf(this.context, colours);
      this.drawn = this.fill(view, now, 0, width);
    } else if (moved > 0) {
      this.pixels.copyWithin(0, moved);
      this.drawn += this.fill(view, now, width - moved, width);
    } else if (moved < 0) {
      this.pixels.copyWithin(-moved, 0);
      this.drawn += this.fill(view, now, 0, -moved);
    }
    this.painted = { view, colours, now };
    this.context.putImageData(this.image, 0, 0);
  }

  isKept(view, colours, now) {
    if (!this.painted) return false;
    const { view: before } = this.painted;
    const isSame = ["schedule", "span", "width", "height", "ratio"].every((name) => view[name] === before[name]);
    return isSame && this.painted.colours === colours && this.painted.now === now
      && this.image.width === this.context.canvas.width && this.image.height === this.context.canvas.height;
  }

  /**
   * Paint columns of pixels, and return the number of rectangles in them. A pixel belongs to the rectangle with the first
   * start that reaches into it. So the cost depends on the visible pixels even if jobs are smaller than a pixel, and a
   * column looks the same whether it is painted alone or with others.
   */
  fill(view, now, from, to) {
    const { schedule, scale, column, ratio, row, tops } = view;
    const { pixels, kinds, image: { width: across, height: down } } = this;
    this.ground(view, from, to);
    const filled = new Int32Array(down).fill(from); // for each row of pixels, the column up to which it is painted
    const [first, last] = schedule.between(view.from + (from - 1) / scale, view.from + (to + 1) / scale);
    let n = 0;
    for (let at = first; at < last; at += 1) {
      const left = Math.floor((schedule.start[at] - schedule.begin) * scale) - column;
      const reach = (schedule.end[at] - schedule.begin) * scale - column;
      const isWide = reach - left > 4 * ratio; // wide enough for a gap after it
      const right = Math.min(to, Math.max(left + 1, isWide ? Math.floor(reach) - Math.round(ratio) : Math.ceil(reach)));
      if (right <= from || left >= to) continue;
      n += 1;
      const begin = Math.max(from, left);
      const y = tops[schedule.site[at]] + schedule.first[at] * row;
      const tall = schedule.nodes[at] * row;
      const top = Math.max(0, Math.floor(y * ratio));
      const end = Math.min(down, Math.max(top + 1, Math.floor((y + tall - (row > 4 ? 1 : 0)) * ratio)));
      const kind = kindOf(schedule, at, now);
      const pixel = kinds[kind];
      for (let line = top; line < end; line += 1) {
        const start = Math.max(begin, filled[line]);
        if (start >= right) continue;
        filled[line] = right;
        const place = line * across;
        if (kind !== STRIPED) for (let x = place + start; x < place + right; x += 1) pixels[x] = pixel;
        else for (let x = start; x < right; x += 1) pixels[place + x] = ((x + column + line) & 7) < 2 ? pixel : kinds.shade;
      }
    }
    return n;
  }

  /** Paint the background of the jobs: the paper, and the rows of nodes. */
  ground(view, from, to) {
    const { pixels, kinds, image: { width: across, height: down } } = this;
    const isNodes = new Uint8Array(down);
    view.schedule.sites.forEach((site, index) => {
      const [top, end] = [view.tops[index], view.tops[index] + site.nodes * view.row].map((y) => Math.round(y * view.ratio));
      isNodes.fill(1, top, end);
    });
    for (let line = 0; line < down; line += 1) {
      pixels.fill(isNodes[line] ? kinds.shade : kinds.paper, line * across + from, line * across + to);
    }
  }
}

/** The kind of a rectangle, 0 to 24. */
function kindOf(schedule, at, now) {
  const tone = schedule.tone[at];
  return tone < 12 && (schedule.waits[at] || schedule.start[at] > now) ? tone + 12 : tone;
}

/** The pixel of each kind of rectangle, and of the background. */
export function pixelsOf(context, colours) {
  const [shade, paper] = [colours.shade, colours.paper].map((colour) => pixelOf(context, colour));
  const tones = colours.tones.map((colour) => pixelOf(context, colour));
  const pale = tones.map((pixel) => mixed(pixel, shade));
  return Object.assign([...tones, ...pale, pixelOf(context, colours.faint)], { shade, paper });
}

/** A colour of the style sheet as an opaque pixel, in the byte order of images. */
function pixelOf(context, colour) {
  context.fillStyle = colour; // the context converts any notation to #rrggbb
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

/** Draw numbers in large rectangles, an outline around the chosen job, and a line that joins its parts. */
function decorate(context, view, colours, kinds, now, chosen) {
  const { schedule, row } = view;
  const [first, last] = schedule.between(view.from, view.to);
  const wideMs = (40 * view.ratio) / view.scale;
  for (let at = first; at < last; at += 1) {
    const isChosen = schedule.job[at] === chosen;
    if (!isChosen && (schedule.end[at] - schedule.start[at] < wideMs || schedule.nodes[at] * row < 11)) continue;
    if (schedule.end[at] <= view.from) continue;
    const [left, top, wide, tall] = box(view, at);
    if (isChosen) outline(context, left, top, wide, tall, colours);
    if (wide > 40 && tall > 11) label(context, view, at, [left, top, wide, tall], colours, kinds[kindOf(schedule, at, now)]);
  }
  if (chosen >= 0) joinParts(context, view, colours, chosen);
}

/** The visible part of a rectangle: left, top, width and height in CSS pixels. */
function box(view, at) {
  const { schedule, row } = view;
  const left = Math.max(-2, view.x(schedule.start[at]));
  const wide = Math.min(view.width + 2, view.x(schedule.end[at])) - left;
  const tall = schedule.nodes[at] * row;
  const top = view.tops[schedule.site[at]] + schedule.first[at] * row;
  return [left, top, Math.max(wide - (wide > 4 ? 1 : 0), 1), Math.max(tall - (row > 4 ? 1 : 0), 1)];
}

function outline(context, left, top, wide, tall, colours) {
  context.strokeStyle = colours.ink;
  context.lineWidth = 2;
  context.strokeRect(left, top, wide, tall);
}

function label(context, view, at, [left, top, wide, tall], colours, pixel) {
  const job = view.schedule.jobs[view.schedule.job[at]];
  const isKept = KEPT.includes(job[3]);
  context.font = "11px system-ui, sans-serif";
  const [text, x] = [isKept ? `${job[3]} ${job[0] || ""}` : String(job[0]), Math.max(left, 0) + 4];
  if (isKept) {
    context.fillStyle = colours.shade;
    context.fillRect(x - 3, top + tall / 2 - 7, Math.min(wide - 8, context.measureText(text).width) + 6, 14);
  }
  context.fillStyle = isKept ? colours.ink : inkOn(pixel);
  context.fillText(text, x, top + tall / 2, wide - 8);
}

/** Black or white, whichever has more contrast with a pixel; the contrasts are equal at a luminance of 0.179. */
export function inkOn(pixel) {
  const linear = [0, 8, 16].map((shift) => {
    const part = ((pixel >>> shift) & 255) / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] > 0.179 ? "#000" : "#fff";
}

/** Draw a line that joins the parts of a job on several sites. */
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
  const step = STEPS.find((each) => view.span / each <= Math.max(2, view.width / 110)) ?? STEPS.at(-1);
  context.fillStyle = colours.paper;
  context.fillRect(0, 0, view.width, AXIS);
  context.font = "12px system-ui, sans-serif";
  context.textBaseline = "middle";
  const word = wordOfNow(context, view, now);
  const zone = Math.abs(view.to) < 1e11 ? 0 : new Date(view.from).getTimezoneOffset() * 60_000;
  for (let at = Math.ceil((view.from - zone) / step) * step + zone; at < view.to; at += step) {
    const [x, text] = [view.x(at), mark(at, step)];
    context.fillStyle = colours.line;
    context.fillRect(x, AXIS - 6, 1, view.height);
    context.fillStyle = colours.faint;
    const isFree = !word || x + 4 + context.measureText(text).width < word.left || x + 4 > word.right;
    if (isFree) context.fillText(text, x + 4, AXIS / 2);
  }
  if (word) {
    context.fillStyle = colours.bad;
    context.fillRect(view.x(now) - 1, 0, 2, view.height);
    context.fillText("now", word.at, AXIS / 2);
  }
}

/** The position of the word "now": right of its line, or left if there is no space. Labels of the axis avoid it. */
function wordOfNow(context, view, now) {
  if (now < view.from || now > view.to) return null;
  const [x, wide] = [view.x(now), context.measureText("now").width];
  const at = x + 4 + wide > view.width ? x - 4 - wide : x + 4;
  return { at, left: Math.min(x, at) - 6, right: Math.max(x, at + wide) + 6 };
}

function mark(instant, step) {
  // Times of a simulation count from its beginning.
  if (Math.abs(instant) < 1e11) {
    const [unit, name] = [[864e5, "d"], [36e5, "h"], [6e4, "min"]].find(([each]) => step >= each) ?? [1e3, "s"];
    return `${+(instant / unit).toFixed(1)} ${name}`;
  }
  const date = new Date(instant);
  if (step >= 864e5) return date.toLocaleDateString(undefined, { month: "short", day: "numeric" });
  return date.toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit", second: step < 6e4 ? "2-digit" : undefined });
}

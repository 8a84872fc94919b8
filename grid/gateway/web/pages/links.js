// The network between the sites, drawn as a map, or as a circle if locations are unknown, and listed in a table.

import { count } from "../text.js";
import { html, Table } from "../ui.js";

const [WIDE, HIGH, EDGE] = [640, 340, 60];

/** The position of each node: by latitude and longitude if all sites have them, or else on a circle. */
function placed(nodes) {
  const known = nodes.filter((node) => node.latitude !== null && node.longitude !== null);
  if (known.length < 2 || nodes.some((node) => node.sites.length && node.latitude === null)) {
    return new Map(nodes.map(({ name }, index) => {
      const turn = (2 * Math.PI * index) / nodes.length - Math.PI / 2;
      return [name, [WIDE / 2 + (WIDE / 2 - 2 * EDGE) * Math.cos(turn), HIGH / 2 + (HIGH / 2 - EDGE) * Math.sin(turn)]];
    }));
  }
  const middle = known.reduce((sum, node) => sum + node.latitude, 0) / known.length;
  const flat = known.map(({ name, latitude, longitude }) => [name, longitude * Math.cos((middle * Math.PI) / 180), -latitude]);
  const [xs, ys] = [flat.map((each) => each[1]), flat.map((each) => each[2])];
  const [left, top] = [Math.min(...xs), Math.min(...ys)];
  const [across, down] = [Math.max(...xs) - left, Math.max(...ys) - top];
  const scale = Math.min((WIDE - 4 * EDGE) / (across || 1e-9), (HIGH - 2 * EDGE) / (down || 1e-9));
  return new Map(flat.map(([name, x, y]) => [name,
    [WIDE / 2 + (x - left - across / 2) * scale, HIGH / 2 + (y - top - down / 2) * scale]]));
}

function speed(bps) {
  if (bps === null) return "unknown";
  for (const [unit, name] of [[1e12, "Tb/s"], [1e9, "Gb/s"], [1e6, "Mb/s"], [1e3, "kb/s"]]) {
    if (bps >= unit) return `${+(bps / unit).toPrecision(3)} ${name}`;
  }
  return `${Math.round(bps)} b/s`;
}

const delay = (ms) => (ms === null ? "unknown" : `${+ms.toPrecision(3)} ms`);

function condition(link) {
  if (link.part === 0) return "✕ down";
  return link.part < 1 ? `◐ ${Math.round(100 * link.part)}% of its bandwidth` : "● up";
}

const describe = (link) => `${link.one} and ${link.other}: ${condition(link)}, ${speed(link.bandwidth_bps)}, ${delay(link.latency_ms)}, ${count(link.jobs, "job")} across`;

/** A link as a line: thicker for a larger bandwidth, and with the number of jobs that use it. */
function Line({ link, at }) {
  const [one, other] = [at.get(link.one), at.get(link.other)];
  if (!one || !other) return null;
  const thick = link.bandwidth_bps === null ? 2 : Math.min(8, Math.max(1.5, Math.log10(link.bandwidth_bps) - 5));
  const kind = link.part === 0 ? "down" : link.jobs ? "used" : "";
  return html`<g class="link ${kind}"><title>${describe(link)}</title>
    <line x1=${one[0]} y1=${one[1]} x2=${other[0]} y2=${other[1]} stroke-width=${thick} />
    ${link.jobs > 0 && html`<text x=${(one[0] + other[0]) / 2 + 6} y=${(one[1] + other[1]) / 2 - 6}>${count(link.jobs, "job")}</text>`}
  </g>`;
}

function Node({ node, at, sites }) {
  const place = at.get(node.name);
  if (!place) return null;
  const [x, y] = place;
  const here = sites.filter((site) => node.sites.includes(site.name));
  const busy = here.reduce((sum, site) => sum + site.nodes - site.free, 0);
  const all = here.reduce((sum, site) => sum + site.nodes, 0);
  const name = node.sites.join(", ") || node.name;
  return html`<g class="node ${here.length ? "site" : "router"}"><title>${name}${here.length ? `: ${busy} of ${all} nodes busy` : ""}</title>
    <circle cx=${x} cy=${y} r=${here.length ? 9 : 5} />
    <text x=${x + 13} y=${y + 5}>${name.length > 24 ? `${name.slice(0, 23)}…` : name}${here.length > 0 && ` ${busy}/${all}`}</text></g>`;
}

export function Links({ network, sites }) {
  const { nodes, links } = network;
  if (!links.length) return null;
  const at = placed(nodes);
  return html`<section class="card"><h2>Links</h2>
    <svg class="map" viewBox="0 0 ${WIDE} ${HIGH}" role="img" aria-label="The sites and the links between them; the table below lists them">
      ${links.map((link) => html`<${Line} link=${link} at=${at} />`)}
      ${nodes.map((node) => html`<${Node} node=${node} at=${at} sites=${sites} />`)}
    </svg>
    <p class="hint">Thicker lines have more bandwidth; dashed links are down. Each site shows its busy nodes out of all its nodes.</p>
    <details open=${links.length <= 12}><summary>As a table</summary>
      <${Table} label="Links" columns=${["Between", "State", "Bandwidth", "Latency", "Jobs across"]}>
        ${links.map((link) => html`<tr><td class="name">${link.one} and ${link.other}</td><td>${condition(link)}</td>
          <td class="number">${speed(link.bandwidth_bps)}</td><td class="number">${delay(link.latency_ms)}${link.measured ? " (measured)" : ""}</td>
          <td class="number">${link.jobs}</td></tr>`)}
      <//></details>
    ${network.paths.length > 0 && html`<details><summary>From site to site</summary>
      <p class="hint">The grid computes the cost of splits from these figures.</p>
      <${Table} label="From site to site" columns=${["From", "To", "Latency", "Bandwidth", ""]}>
        ${network.paths.map((path) => html`<tr><td class="name">${path.origin}</td><td class="name">${path.target}</td>
          <td class="number">${delay(path.latency_ms)}</td><td class="number">${speed(path.bandwidth_bps)}</td>
          <td>${path.measured ? "measured" : "as configured"}</td></tr>`)}
      <//></details>`}</section>`;
}

// Charts of spans of runs: bars of offsets, the lag above them, and what needs a look as a strip below. They share x.

import uPlot from "./vendor/uplot/uPlot.esm.js";
import { colour } from "./theme.js";
import { compact, number, plural, tick, time } from "./format.js";

export const PARTS = ["written", "filtered", "absent", "quarantined", "lost"];
const LEFT = 58, RIGHT = 10;

const axis = (more) => ({
  stroke: colour("muted"), font: "11px system-ui, sans-serif", labelFont: "11px system-ui, sans-serif",
  grid: { stroke: colour("grid"), width: 1 }, ticks: { show: false }, ...more,
});

function frame(spans, hooks, sync) {
  const seconds = (Date.parse(spans.at(-1).end) - Date.parse(spans[0].begin)) / 1000;
  return {
    ms: 1, padding: [8, RIGHT, 6, 0], legend: { show: false }, hooks,
    cursor: { sync: { key: sync }, y: false, drag: { x: false, y: false }, points: { show: false } },
    scales: { x: { time: false, range: () => [-0.6, spans.length - 0.4] }, y: { range: (_, lo, hi) => [0, hi > 0 ? hi * 1.06 : 1] } },
    seconds,
  };
}

const xAxis = (spans, seconds) => axis({
  grid: { show: false }, size: 26, space: 70,
  splits: (u) => {
    const step = Math.max(1, Math.ceil(spans.length / Math.max(2, Math.floor(u.bbox.width / devicePixelRatio / 90))));
    return spans.map((_, i) => i).filter((i) => i % step === 0);
  },
  values: (_, at) => at.map((i) => (spans[i] ? tick(spans[i].begin, seconds) : "")),
});

const yAxis = () => axis({ size: LEFT, space: 34, values: (_, at) => at.map((v) => (v % 1 ? "" : compact(v))) });

/** Bars of offsets per span, stacked; `shown` names the parts. */
function bars(box, spans, shown, sync, hooks) {
  const x = spans.map((_, i) => i);
  const parts = PARTS.filter((p) => shown.has(p));
  // null where there is nothing of a part: a bar below another one of the same height would shine through its edges
  const sums = parts.map((part, n) => spans.map((s) => (s[part] ? parts.slice(0, n + 1).reduce((sum, p) => sum + s[p], 0) : null)));
  const base = frame(spans, hooks, sync);
  const drawn = uPlot.paths.bars({ size: [0.82, 46], align: 0 });
  return new uPlot({
    ...base, width: box.clientWidth, height: 196, axes: [{ ...xAxis(spans, base.seconds), show: false }, yAxis()],
    // the highest sum first: the lower ones are drawn over it
    series: [{}, ...parts.map((p) => ({ fill: colour(p), width: 0, paths: drawn, points: { show: false } })).reverse()],
  }, [x, ...sums.reverse()], box);
}

function lagLine(box, spans, sync, hooks) {
  const base = frame(spans, hooks, sync);
  return new uPlot({
    ...base, width: box.clientWidth, height: 116, axes: [xAxis(spans, base.seconds), yAxis()],
    series: [{}, {
      stroke: colour("lag"), fill: colour("lag-fill"), width: 1.5, spanGaps: true, points: { show: spans.length < 2 },
      paths: spans.length > 1 ? uPlot.paths.stepped({ align: 0 }) : undefined,
    }],
  }, [spans.map((_, i) => i), spans.map((s) => s.found)], box);
}

/** What a span's runs came to, worst first. */
export function worst(span) {
  for (const verdict of ["error", "failed", "warned"]) if (span.verdicts[verdict]) return verdict;
  if (span.states.failed) return "failed";
  if (span.states.abandoned) return "abandoned";
  if (span.states.open) return "running";
  return span.verdicts.passed ? "passed" : "empty";
}

const ROWS = [
  ["verdict", (s) => colour({ error: "bad", failed: "bad", warned: "warn", abandoned: "warn", running: "busy", passed: "good-soft", empty: "faint" }[worst(s)])],
  ["quarantined", (s) => s.quarantined ? colour("quarantined") : colour("faint")],
  ["lost", (s) => s.lost ? colour("lost") : colour("faint")],
];

function strip(box, spans, sync, hooks) {
  const base = frame(spans, {}, sync);
  const draw = (u) => {
    const { ctx, bbox } = u, dpr = devicePixelRatio;
    const each = bbox.width / (spans.length + 0.2), row = bbox.height / ROWS.length;
    ctx.save();
    ROWS.forEach(([, of], r) => spans.forEach((s, i) => {
      const w = Math.max(dpr, Math.min(each * 0.82, 46 * dpr));
      ctx.fillStyle = of(s);
      ctx.fillRect(u.valToPos(i, "x", true) - w / 2, bbox.top + r * row + 2 * dpr, w, row - 4 * dpr);
    }));
    ctx.fillStyle = colour("muted");
    ctx.font = `${11 * dpr}px system-ui, sans-serif`;
    ctx.textAlign = "right";
    ctx.textBaseline = "middle";
    ROWS.forEach(([name], r) => ctx.fillText(name === "quarantined" ? "quarant." : name, bbox.left - 8 * dpr, bbox.top + (r + 0.5) * row));
    ctx.restore();
  };
  return new uPlot({
    ...base, padding: [2, RIGHT, 2, 0], width: box.clientWidth, height: 54, hooks: { ...hooks, draw: [draw] },
    scales: { ...base.scales, y: { range: () => [0, 1] } },
    axes: [{ show: false }, { ...yAxis(), values: () => [], grid: { show: false } }],
    series: [{}, { paths: () => null, points: { show: false } }],
  }, [spans.map((_, i) => i), spans.map(() => 1)], box);
}

/** One line that says what a span holds; it is read out as well. */
export function told(span) {
  if (!span) return "";
  const parts = PARTS.filter((p) => span[p]).map((p) => `${number(span[p])} ${p}`).join(", ") || (span.states.open ? "nothing committed yet" : "nothing to read");
  const when = span.runs === 1 ? time(span.begin) : `${time(span.begin, false)} to ${time(span.end, false)}`;
  const found = span.found === null ? "" : ` · found ${number(span.found)} waiting`;
  return `${when} UTC · ${span.runs === 1 ? span.last : plural(span.runs, "run")} · ${worst(span)} · ${parts}${found}`;
}

/** The three charts in their boxes. `choose` is called with the index of a span, or null when none is pointed at. */
export function draw(boxes, spans, shown, { point, open }) {
  const sync = uPlot.sync("runs").key;
  let at = null;
  const hooks = { setCursor: [(u) => { if (u.cursor.idx !== at) { at = u.cursor.idx; point(at ?? null); } }] };
  const plots = [bars(boxes.bars, spans, shown, sync, hooks), strip(boxes.strip, spans, sync, hooks), lagLine(boxes.lag, spans, sync, hooks)];
  for (const u of plots) {
    uPlot.sync(sync).sub(u);
    u.over.addEventListener("click", () => at !== null && open(at));
  }
  const fit = new ResizeObserver(() => plots.forEach((u) => {
    const width = u.root.parentElement?.clientWidth;
    if (width && width !== u.width) u.setSize({ width, height: u.height });
  }));
  fit.observe(boxes.bars);
  return {
    /** Point at a span from the keyboard. */
    move(i) {
      const u = plots[0];
      u.setCursor({ left: u.valToPos(i, "x"), top: 10 });
    },
    destroy() {
      fit.disconnect();
      plots.forEach((u) => { uPlot.sync(sync).unsub(u); u.destroy(); });
    },
  };
}

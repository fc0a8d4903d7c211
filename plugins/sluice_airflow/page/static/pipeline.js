// One pipeline.

import * as api from "./api.js";
import { draw, PARTS, told, worst } from "./charts.js";
import { chip, el, table } from "./dom.js";
import { ago, compact, length, number, plural, time } from "./format.js";
import { lagCells } from "./lag.js";
import { failure, go, notice } from "./shell.js";
import { redriveButton } from "./redrive.js";
import { every } from "./refresh.js";
import { runDialog } from "./run.js";
import { onTheme } from "./theme.js";

const WINDOWS = [[50, "50"], [200, "200"], [1000, "1,000"], [1000000, "all"]];
const PAGE = 25;

const fact = (title, ...value) => el("div", {}, el("dt", {}, title), el("dd", {}, value));
const section = (title, ...children) => {
  const id = `s-${title.toLowerCase().replace(/\W+/g, "-")}`;
  return el("section", { class: "card", "aria-labelledby": id }, el("h2", { id }, title), children);
};

export function pipeline(view, name, wantedRun) {
  const state = { newest: 200, shown: new Set(PARTS), at: null, page: [], known: null, lag: null, losses: null, log: null };
  const head = el("header"), facts = el("dl", { class: "facts top" }), top = el("div");
  const charts = chartSection(state, (id) => openRun(id));
  const lossBox = el("div"), refusedBox = el("div"), logBox = el("section", { hidden: true }), table_ = el("div");
  const more = el("button", { type: "button", class: "act", onclick: older }, "Older runs");
  view.append(head, top, facts, charts.node,
    el("div", { class: "two" }, section("Open lost ranges", lossBox), section("Quarantine by rule", refusedBox)),
    logBox, section("All runs", table_, more));
  let closeRun = null, painted = "";

  function openRun(id) {
    closeRun?.();
    history.replaceState(null, "", `?pipeline=${encodeURIComponent(name)}&run=${encodeURIComponent(id)}`);
    closeRun = runDialog(state.known, id, () => {
      closeRun = null;
      history.replaceState(null, "", `?pipeline=${encodeURIComponent(name)}`);
    });
  }

  function paintHead() {
    const p = state.known;
    head.replaceChildren(
      el("a", { class: "back", href: ".", onclick: (e) => { e.preventDefault(); go(""); } }, "← Pipelines"),
      el("h1", {}, p.name), p.recovery && chip(p.recovery),
      el("span", { class: "quiet" }, [p.streams?.join(", "), p.sink && `→ ${p.sink}`, p.problem && `its file is not valid: ${p.problem}`].filter(Boolean).join(" ")),
      el("span", { class: "links" }, el("a", { href: api.dataDocs(name), onclick: (e) => { e.preventDefault(); api.leave(api.dataDocs(name)); } }, "Data Docs")));
    const last = p.recent[0], lag = p.kafka ? lagCells(state.lag) : null;
    facts.replaceChildren(...[
      lag && fact("Lag", lag.count, " ", lag.status, lag.age),
      last && fact("Last run", chip(last.state, last.run_id), el("span", { class: "quiet" }, `${ago(last.closed_at ?? last.opened_at)}${last.seconds ? `, took ${length(last.seconds)}` : ""}`)),
      fact("Last verdict", p.verdict ? [chip(p.verdict.verdict), ...(p.held ? [chip("held", `live runs wait: sluice accept, or sluice retract, run ${p.held}`)] : []), el("span", { class: "quiet" }, ago(p.verdict.at))] : "–"),
      fact("Open losses", el("span", { class: `big${p.lost ? " bad" : ""}` }, compact(p.lost)), p.lost ? (p.lost === 1 ? " offset" : " offsets") : null),
      fact("In quarantine", state.losses?.quarantine ? el("span", { class: "big" }, compact(state.losses.quarantine.reduce((n, q) => n + q.records, 0))) : "–"),
      fact("Runs", el("span", { class: "big" }, compact(p.count)), p.running && el("span", { class: "quiet" }, chip("running", p.running))),
    ].filter(Boolean));
  }

  const started = (run) => { notice(`Airflow started ${state.known.maintenance}.`, false, { text: run, url: api.dagRun(state.known.maintenance, run) }); };

  function paintLosses() {
    const found = state.losses, p = state.known;
    if (!found) return;
    const where = (r) => `${r.topic}-${r.partition}`;
    lossBox.replaceChildren(...[
      found.count > 0 && el("div", { class: "bar" }, el("span", {}, `${plural(found.lost, "offset")} in ${plural(found.count, "range")}`), redriveButton(p, "lost", found.lost, started)),
      table("Open lost ranges", [
        { title: "Partition", cell: where },
        { title: "Offsets", cell: (r) => `${number(r.start)} – ${number(r.end)}` },
        { title: "Lost", number: true, cell: (r) => number(r.offsets) },
        { title: "Reason", class: "reason", cell: (r) => el("span", { title: `${r.lost_by}, ${time(r.at)} UTC` }, r.reason) },
      ], found.ranges.slice(0, 50), { empty: "No range is lost." }),
      found.count > 50 && el("p", { class: "quiet" }, `and ${number(found.count - 50)} more: sluice redrive ${name} --dry-run`),
    ].filter(Boolean));
    const refused = found.quarantine, all = refused?.reduce((n, q) => n + q.records, 0) ?? 0;
    refusedBox.replaceChildren(...[
      all > 0 && el("div", { class: "bar" }, el("span", {}, plural(all, "record")), redriveButton(p, "quarantined", all, started)),
      table("Quarantine by rule", [
        { title: "Rule", cell: (q) => q.rule },
        { title: "Column", cell: (q) => q.column },
        { title: "Records", number: true, cell: (q) => number(q.records) },
        { title: "", class: "share", cell: (q) => el("i", { class: "meter", style: { width: `${Math.max(2, 100 * q.records / all)}%` } }) },
      ], refused ?? [], { empty: refused ? "Nothing is in quarantine." : p.problem ? "Its pipeline file is not valid." : "Its pipeline file is not here." }),
    ].filter(Boolean));
  }

  function paintLog() {
    const held = state.log;
    if (!held || !state.known.log) return;
    logBox.hidden = false;
    const kafka = new Map((state.lag?.partitions ?? []).map((p) => [`${p.topic}-${p.partition}`, p]));
    const kept = (topic) => (topic in held.retention ? (held.retention[topic] === null ? "for ever" : `for ${length(held.retention[topic])}`) : "for an unknown time");
    const rows = held.held.map((h) => {
      const k = kafka.get(`${h.topic}-${h.partition}`), known = k && k.start !== null;
      const lo = Math.min(h.start, known ? k.start : h.start), hi = Math.max(h.end, known ? k.end : h.end, lo + 1);
      const at = (v) => `${(100 * (v - lo)) / (hi - lo)}%`, wide = (a, b) => `${Math.max(0.5, (100 * (b - a)) / (hi - lo))}%`;
      return { ...h, k: known ? k : null, only: known ? Math.max(0, Math.min(h.end, k.start) - h.start) : null,
        bar: el("span", { class: "reach", role: "img", "aria-label": `log ${h.start} to ${h.end}${known ? `, Kafka ${k.start} to ${k.end}` : ""}` },
          el("i", { class: "of-log", style: { left: at(h.start), width: wide(h.start, h.end) }, title: `log: ${number(h.start)} – ${number(h.end)}` }),
          known && el("i", { class: "of-kafka", style: { left: at(k.start), width: wide(k.start, k.end) }, title: `Kafka: ${number(k.start)} – ${number(k.end)}` })) };
    });
    const since = Math.min(...rows.map((r) => r.since));
    logBox.replaceWith(Object.assign(section("Write-ahead log and Kafka",
      rows.length ? el("p", { class: "quiet" }, `The log reaches back ${ago(new Date(since).toISOString()).replace(" ago", "")}; Kafka keeps ${[...new Set(rows.map((r) => r.topic))].map((t) => `${t} ${kept(t)}`).join(", ")}.`) : null,
      table("Write-ahead log and Kafka", [
        { title: "Partition", cell: (r) => `${r.topic}-${r.partition}` },
        { title: "Log (above) and Kafka (below)", class: "reaches", cell: (r) => r.bar },
        { title: "Only in the log", number: true, cell: (r) => (r.only === null ? "unknown" : number(r.only)) },
        { title: "Not in it yet", number: true, cell: (r) => (r.k ? number(Math.max(0, r.k.end - r.end)) : "unknown") },
        { title: "Segments", number: true, cell: (r) => number(r.segments) },
      ], rows, { empty: "The log is empty." })), { id: "log" }));
  }

  function paintRuns() {
    const cell = (key, cls) => ({ title: key, number: true, cell: (r) => (r[key] ? el("span", { class: cls }, number(r[key])) : el("span", { class: "none" }, "0")) });
    table_.replaceChildren(table("Runs", [
      { title: "Began (UTC)", cell: (r) => time(r.opened_at) },
      { title: "Run", class: "id", cell: (r) => el("button", { type: "button", class: "link", onclick: () => openRun(r.run_id) }, r.run_id) },
      { title: "State", cell: (r) => chip(r.state) },
      { title: "Verdict", cell: (r) => chip(r.verdict) },
      cell("written"), cell("filtered"), cell("quarantined", "warn-text"), cell("absent"), cell("lost", "bad-text"),
      { title: "Took", number: true, cell: (r) => length(r.seconds) },
    ], state.page, { empty: "It has not run yet." }));
    more.hidden = state.page.length >= state.known.count;
  }

  async function older() {
    try {
      state.page.push(...await api.runs(name, state.page.at(-1).sequence, PAGE));
      paintRuns();
    } catch (e) { notice(e.message, true); }
  }

  async function update(signal) {
    try {
      const asked = state.newest;
      state.known = await api.pipeline(name, asked, signal);
      if (asked !== state.newest) return;
      top.replaceChildren();
      const fresh = state.known.page, oldest = fresh.at(-1)?.sequence;
      state.page = [...fresh, ...state.page.filter((r) => r.sequence < oldest)];
      paintHead();
      const now = JSON.stringify([state.known.spans, asked]);
      if (now !== painted) { painted = now; charts.paint(); paintRuns(); }
      view.removeAttribute("aria-busy");
      if (wantedRun) { openRun(wantedRun); wantedRun = null; }
      const told_ = (key, after) => (found) => { if (!signal.aborted) { state[key] = found; after(); } };
      const quiet = (box) => (e) => signal.aborted || box?.replaceChildren(failure(e));
      await Promise.all([
        state.known.kafka && api.lag(name, signal).then(told_("lag", () => { paintHead(); paintLog(); }))
          .catch((e) => told_("lag", paintHead)({ lag: null, age: null, verdict: "UNKNOWN", partitions: [], error: { what: e.message } })),
        api.losses(name, signal).then(told_("losses", () => { paintHead(); paintLosses(); })).catch((e) => { quiet(lossBox)(e); quiet(refusedBox)(e); }),
        state.known.log && api.log(name, signal).then(told_("log", paintLog)).catch(() => {}),
      ]);
    } catch (e) {
      if (!signal.aborted) top.replaceChildren(failure(e));
    }
  }

  charts.onWindow(async (newest) => {
    state.newest = newest;
    await update(new AbortController().signal);
  });
  const stop = every(15, update), off = onTheme(() => charts.paint());
  return () => { stop(); off(); charts.destroy(); closeRun?.(); };
}

function chartSection(state, openRun) {
  const boxes = { bars: el("div"), strip: el("div"), lag: el("div") };
  const line = el("p", { class: "told", "aria-live": "polite" });
  const frame = el("div", { class: "charts", tabindex: "0", role: "group", "aria-roledescription": "chart", "aria-label": "Offsets per run. Arrow keys move, Enter opens the run.", onkeydown: key });
  let drawn = null, windowed = () => {};
  const legend = el("div", { class: "legend", role: "group", "aria-label": "What the bars show" }, PARTS.map((p) =>
    el("button", { type: "button", "aria-pressed": "true", class: `part ${p}`, onclick: (e) => {
      state.shown.has(p) ? state.shown.delete(p) : state.shown.add(p);
      e.currentTarget.setAttribute("aria-pressed", state.shown.has(p));
      paint();
    } }, p)));
  const sizes = el("div", { class: "sizes", role: "radiogroup", "aria-label": "How many runs" }, "newest ", WINDOWS.map(([n, text]) =>
    el("label", {}, el("input", { type: "radio", name: "window", value: n, checked: n === state.newest, onchange: () => windowed(n) }), el("span", {}, text))), " runs");
  frame.append(el("h3", {}, "Offsets, by what became of them"), boxes.bars, boxes.strip, el("h3", {}, "Lag: what a run found waiting"), boxes.lag);
  const node = section("Runs", el("div", { class: "bar" }, legend, sizes), frame, line);

  function point(i) {
    state.at = i;
    const spans = state.known.spans;
    line.textContent = told(spans[i ?? spans.length - 1]);
  }
  function key(event) {
    const spans = state.known?.spans ?? [], last = spans.length - 1;
    const to = { ArrowLeft: (state.at ?? last + 1) - 1, ArrowRight: (state.at ?? -1) + 1, Home: 0, End: last }[event.key];
    if (event.key === "Enter" && state.at !== null) openRun(spans[state.at].last);
    else if (to === undefined || last < 0) return;
    else { const i = Math.min(last, Math.max(0, to)); drawn?.move(i); point(i); }
    event.preventDefault();
  }
  function paint() {
    drawn?.destroy();
    drawn = null;
    const spans = state.known?.spans ?? [];
    frame.hidden = !spans.length;
    state.at = null;
    if (!spans.length) { line.textContent = "It has not run yet."; return; }
    drawn = draw(boxes, spans, state.shown, { point, open: (i) => openRun(spans[i].last) });
    frame.dataset.spans = spans.length;
    frame.dataset.worst = spans.map(worst).filter((w) => !["passed", "empty"].includes(w)).length;
    point(null);
  }
  return { node, paint, onWindow: (f) => { windowed = f; }, destroy: () => drawn?.destroy() };
}

// The pipelines at a glance.

import * as api from "./api.js";
import { chip, el, tone } from "./dom.js";
import { ago, compact, length, number, plural, time } from "./format.js";
import { lagCells } from "./lag.js";
import { failure, go } from "./shell.js";
import { every } from "./refresh.js";

const RECENT = 30;

/** The newest runs as small bars: how much, and how it ended. */
function pulse(runs) {
  const most = Math.max(1, ...runs.map((r) => r.planned));
  const height = (r) => `${Math.max(12, 100 * Math.sqrt(r.planned / most))}%`;
  const said = `newest ${plural(runs.length, "run")}; ${runs.filter((r) => outcome(r) === "good").length} without a finding`;
  return el("span", { class: "pulse", role: "img", "aria-label": said },
    Array.from({ length: RECENT - runs.length }, () => el("i", { class: "blank" })),
    [...runs].reverse().map((r) => el("i", {
      class: outcome(r), style: { height: height(r) },
      title: `${r.run_id}\n${time(r.opened_at)} UTC\n${r.verdict ?? r.state}, ${number(r.planned)} offsets`,
    })));
}

const outcome = (r) => (r.state === "failed" ? "bad" : r.verdict === "empty" ? "calm" : tone(r.verdict ?? r.state));

function row(p, lag) {
  const last = p.recent[0], open = `?pipeline=${encodeURIComponent(p.name)}`;
  const { count, age, status } = p.kafka === false || !p.file ? { count: el("span", { class: "none" }, "–") } : lagCells(lag);
  return el("tr", { onclick: (e) => e.target.closest("a") || go(open) },
    el("th", { scope: "row" },
      el("a", { href: open, onclick: (e) => { e.preventDefault(); go(open); } }, p.name),
      el("span", { class: "quiet" }, p.file ? [p.recovery, ...p.streams].join(" · ") : p.problem ? `its file is not valid: ${p.problem}` : "no pipeline file here")),
    el("td", { class: "num" }, count, age),
    el("td", {}, status),
    el("td", {}, pulse(p.recent)),
    el("td", {}, last ? [chip(last.state, last.run_id), el("span", { class: "quiet" }, `${ago(last.closed_at ?? last.opened_at)}${last.seconds ? `, took ${length(last.seconds)}` : ""}`)] : el("span", { class: "none" }, "never ran")),
    el("td", {}, p.verdict ? [chip(p.verdict.verdict), ...(p.held ? [chip("held")] : []), el("span", { class: "quiet" }, ago(p.verdict.at))] : el("span", { class: "none" }, "–")),
    el("td", { class: "num" }, p.lost ? el("span", { class: "big bad" }, compact(p.lost)) : el("span", { class: "none" }, "0")));
}

export function overview(view) {
  const head = el("header", {}, el("h1", {}, "Pipelines"), el("p", { class: "quiet", id: "summary" }));
  const body = el("tbody"), lags = new Map();
  const columns = ["Pipeline", ["Lag", "num"], "", `Newest ${RECENT} runs`, "Last run", "Last verdict", ["Open losses", "num"]];
  const list = el("div", { class: "scroll card" }, el("table", { class: "glance" },
    el("thead", {}, el("tr", {}, columns.map((c) => el("th", { scope: "col", class: Array.isArray(c) ? c[1] : null }, Array.isArray(c) ? c[0] : c)))), body));
  view.append(head, list);
  let known = [];

  const paint = () => {
    const focused = document.activeElement?.closest?.("tr")?.rowIndex;
    body.replaceChildren(...known.map((p) => row(p, lags.get(p.name))));
    if (focused) body.rows[focused - 1]?.querySelector("a")?.focus();
  };
  const update = async (signal) => {
    try {
      known = await api.pipelines(signal);
      paint();
      const failed = known.filter((p) => (p.file || p.problem) && (p.recent[0]?.state === "failed" || ["failed", "error"].includes(p.verdict?.verdict))).length;
      head.lastChild.textContent = known.length
        ? `${plural(known.length, "pipeline")}${failed ? `, ${failed} failed` : ""}`
        : "There is none whose DAG you may read.";
      view.removeAttribute("aria-busy");
      // each broker answers in its own time, and none holds up the others
      await Promise.all(known.filter((p) => p.kafka).map((p) => api.lag(p.name, signal)
        .catch((e) => ({ lag: null, age: null, verdict: "UNKNOWN", partitions: [], error: { what: e.message } }))
        .then((found) => { if (!signal.aborted) { lags.set(p.name, found); paint(); } })));
    } catch (e) {
      if (!signal.aborted) list.replaceWith(failure(e));
    }
  };
  return every(15, update);
}

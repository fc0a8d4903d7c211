// One run: its account, how it was judged, what it read.

import * as api from "./api.js";
import { chip, el, table } from "./dom.js";
import { PARTS } from "./charts.js";
import { length, number, time } from "./format.js";
import { failure } from "./shell.js";

const RESULTS = [
  { title: "Expectation", cell: (r) => r.expectation.replace(/^expect_/, "").replaceAll("_", " ") },
  { title: "Column", cell: (r) => r.column },
  { title: "Expected", cell: (r) => r.expected ?? "" },
  { title: "", cell: (r) => chip(r.exception ? "error" : r.success ? "passed" : r.severity === "warning" ? "warned" : "failed") },
  { title: "Unexpected", number: true, cell: (r) => (r.unexpected_count ? number(r.unexpected_count) : "–") },
  { title: "For example", class: "examples", cell: (r) => r.exception ?? (r.examples?.length ? r.examples.slice(0, 3).map(String).join(", ") : "") },
];
const RANGES = [
  { title: "Partition", cell: (r) => `${r.topic}-${r.partition}` },
  { title: "Offsets", cell: (r) => `${number(r.start)} – ${number(r.end)}` },
  ...["planned", ...PARTS].map((p) => ({ title: p, number: true, cell: (r) => number(r[p]) })),
];

export function runDialog(pipeline, id, closed) {
  const body = el("div", { "aria-busy": true });
  const box = el("dialog", { class: "run", "aria-label": `Run ${id}` },
    el("header", {}, el("h2", {}, id), el("button", { type: "button", class: "act", onclick: () => box.close() }, "Close")), body);
  box.addEventListener("close", () => { box.remove(); closed(); });
  box.addEventListener("click", (e) => e.target === box && box.close());
  document.body.append(box);
  box.showModal();
  api.run(pipeline.name, id).then((r) => body.replaceChildren(...content(pipeline, r)), (e) => body.replaceChildren(failure(e)));
  return () => box.close();
}

function content(pipeline, r) {
  const failed = r.results.filter((x) => !x.success), passed = r.results.length - failed.length;
  const out = (text, url) => el("a", { href: url, onclick: (e) => { e.preventDefault(); api.leave(url); } }, text);
  const facts = [
    ["State", chip(r.state)], ["Verdict", chip(r.verdict)], ["Kind", r.interval ? `${r.kind} ${r.interval}` : r.kind], ["Strategy", r.recovery],
    ["Began", `${time(r.opened_at)} UTC`], ["Took", length(r.seconds)], ["Attempts", number(r.attempts)], ["Reason", r.reason],
  ].filter(([, value]) => value);
  return [
    el("dl", { class: "facts" }, facts.map(([k, v]) => el("div", {}, el("dt", {}, k), el("dd", {}, v)))),
    el("p", { class: "links" },
      r.in_airflow ? out("Run in Airflow", api.dagRun(pipeline.name, r.run)) : null,
      r.data_docs ? out("Data Docs", api.dataDocs(pipeline.name)) : null),
    r.error?.what && el("div", { class: "failure" }, r.error.what, r.error.state && el("span", {}, `Data: ${r.error.state}`), r.error.next_step && el("span", {}, `Next: ${r.error.next_step}`)),
    (r.notes ?? []).map((n) => el("p", { class: "note" }, n)),
    (r.reasons ?? []).map((n) => el("p", { class: "note" }, n)),
    r.results.length ? [el("h3", {}, `Expectations${r.suite ? ` of ${r.suite}` : ""}: ${passed} passed, ${failed.length} not`), table("Expectations", RESULTS, [...failed, ...r.results.filter((x) => x.success)])] : null,
    el("h3", {}, "Offsets"),
    table("Offsets", RANGES, r.ranges, { empty: "Nothing was committed." }),
  ].flat(2).filter(Boolean);
}

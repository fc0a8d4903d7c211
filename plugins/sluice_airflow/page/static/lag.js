// The lag in words: how many records wait, since when, and what that means.

import { chip, el } from "./dom.js";
import { compact, length, number } from "./format.js";

export function lagTitle(lag) {
  const parts = lag.partitions.map((p) => `${p.topic}-${p.partition}: ${number(p.lag)}`).slice(0, 24).join("\n");
  return [lag.error?.what, parts].filter(Boolean).join("\n");
}

export function lagCells(lag) {
  if (!lag) return { count: el("span", { class: "wait" }), age: null, status: null };
  return {
    count: el("span", { class: "big", title: lagTitle(lag) }, compact(lag.lag), lag.incomplete && lag.lag !== null ? "+" : ""),
    age: lag.lag ? el("span", { class: "quiet" }, lag.age === null ? "age unknown" : `oldest ${length(lag.age)}`) : null,
    status: chip(lag.verdict, lag.error?.what ?? (lag.over ? "over the limits of the pipeline file" : null)),
  };
}

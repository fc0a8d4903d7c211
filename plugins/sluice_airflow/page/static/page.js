// Which view is shown: the pipelines at a glance, or one of them. The address says so: ?pipeline=NAME&run=ID.

import "./theme.js";
import { el } from "./dom.js";
import { overview } from "./overview.js";
import { pipeline } from "./pipeline.js";

const view = document.getElementById("view");
let close = () => {};

export function go(query, { replace = false } = {}) {
  const address = new URL(query || ".", location.href);
  if (!query) address.search = "";
  history[replace ? "replaceState" : "pushState"](null, "", address);
  show();
}

export function notice(text, bad = false) {
  const line = document.getElementById("notice");
  line.textContent = text;
  line.className = bad ? "bad" : "";
  line.hidden = !text;
}

export function failure(error) {
  return el("p", { class: "failure", role: "alert" }, error.message, error.next && el("span", {}, `Next: ${error.next}`));
}

function show() {
  close();
  notice("");
  const asked = new URLSearchParams(location.search), name = asked.get("pipeline");
  document.title = name ? `${name} · Sluice` : "Sluice";
  view.replaceChildren();
  close = name ? pipeline(view, name, asked.get("run")) : overview(view);
  view.focus({ preventScroll: true });
}

window.addEventListener("popstate", show);
show();

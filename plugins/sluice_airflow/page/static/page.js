// Which view is shown: the pipelines at a glance, or one of them. The address says so: ?pipeline=NAME&run=ID.

import "./theme.js";
import { MOVED, notice } from "./shell.js";
import { overview } from "./overview.js";
import { pipeline } from "./pipeline.js";

const view = document.getElementById("view");
let close = () => {};

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
window.addEventListener(MOVED, show);
show();

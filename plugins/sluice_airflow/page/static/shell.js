// What every view needs of the page around it: to move to another view, to say something, to show an error.

import { leave } from "./api.js";
import { el } from "./dom.js";

export const MOVED = "sluice-moved";

export function go(query, { replace = false } = {}) {
  const address = new URL(query || ".", location.href);
  if (!query) address.search = "";
  history[replace ? "replaceState" : "pushState"](null, "", address);
  window.dispatchEvent(new Event(MOVED));
}

/** Say something above the page; with a link to an address of Airflow's. */
export function notice(text, bad = false, link = null) {
  const line = document.getElementById("notice");
  line.replaceChildren(text, ...(link ? [" ", el("a", { href: link.url, onclick: (e) => { e.preventDefault(); leave(link.url); } }, link.text)] : []));
  line.className = bad ? "bad" : "";
  line.hidden = !text;
}

export function failure(error) {
  return el("p", { class: "failure", role: "alert" }, error.message, error.next && el("span", {}, `Next: ${error.next}`));
}

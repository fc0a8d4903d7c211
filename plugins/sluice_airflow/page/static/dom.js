// Makes elements. Text is always text: nothing of the data becomes markup.

export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(node.style, value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false));
  return node;
}

const TONES = {
  passed: "good", done: "good", OK: "good", success: "good",
  warned: "warn", BACKLOG: "calm", NEW: "calm", empty: "calm", open: "busy", running: "busy",
  CLOCK: "warn", GROWING: "warn", UNKNOWN: "warn", abandoned: "warn",
  failed: "bad", error: "bad", held: "bad", STUCK: "bad", REWOUND: "bad", LOST: "bad", RECREATED: "bad", AUTH: "bad",
};

export const tone = (word) => TONES[word] ?? "calm";

export const chip = (said, title, word = said === "open" ? "running" : said) =>
  word ? el("span", { class: `chip ${tone(word)}`, title }, word) : el("span", { class: "none" }, "–");

export function table(caption, columns, rows, { empty = "None." } = {}) {
  if (!rows.length) return el("p", { class: "empty" }, empty);
  return el("div", { class: "scroll" }, el("table", { "aria-label": caption },
    el("thead", {}, el("tr", {}, columns.map((c) => el("th", { class: c.number ? "num" : null, scope: "col" }, c.title)))),
    el("tbody", {}, rows.map((row) => el("tr", {}, columns.map((c) => {
      const value = c.cell(row);
      return el("td", { class: [c.number && "num", c.class].filter(Boolean).join(" ") || null }, value ?? "–");
    }))))));
}

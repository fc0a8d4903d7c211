// Light or dark: what Airflow shows around this frame, else what the user chose there, else what the system says.

const system = matchMedia("(prefers-color-scheme: dark)");
const followers = new Set();

function around() {
  try {
    return window.parent !== window ? window.parent.document.documentElement : null;
  } catch {
    return null; // a frame of another origin
  }
}

function wanted() {
  const frame = around();
  if (frame && (frame.classList.contains("dark") || frame.classList.contains("light")))
    return frame.classList.contains("dark") ? "dark" : "light";
  let chosen = null;
  try { chosen = localStorage.getItem("theme"); } catch { /* storage is off */ }
  if (chosen === "light" || chosen === "dark") return chosen;
  return system.matches ? "dark" : "light";
}

function apply() {
  const theme = wanted();
  if (document.documentElement.dataset.theme === theme) return;
  document.documentElement.dataset.theme = theme;
  followers.forEach((f) => f(theme));
}

export const onTheme = (f) => (followers.add(f), () => followers.delete(f));
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

system.addEventListener("change", apply);
window.addEventListener("storage", apply);
const frame = around();
if (frame) new MutationObserver(apply).observe(frame, { attributes: true, attributeFilter: ["class"] });
apply();

// How numbers, times and lengths of time are written.

const whole = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const number = (n) => (n === null || n === undefined ? "–" : whole.format(n));
export const compact = (n) => (n === null || n === undefined ? "–" : Math.abs(n) < 10000 ? whole.format(n) : short.format(n));
export const plural = (n, word) => `${number(n)} ${word}${n === 1 ? "" : "s"}`;

export function length(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 1 && seconds > 0) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60), hours = Math.floor(minutes / 60), days = Math.floor(hours / 24);
  if (minutes < 60) return `${minutes} min`;
  if (hours < 48) return minutes % 60 ? `${hours} h ${minutes % 60} min` : `${hours} h`;
  return hours % 24 ? `${days} d ${hours % 24} h` : `${days} d`;
}

export function ago(iso) {
  if (!iso) return "–";
  const seconds = (Date.now() - Date.parse(iso)) / 1000;
  return seconds < 5 ? "just now" : `${length(Math.max(0, seconds))} ago`;
}

const two = (n) => String(n).padStart(2, "0");

/** A time in UTC, as the ledger and Airflow's run ids have it. */
export function time(iso, seconds = true) {
  if (!iso) return "–";
  const d = new Date(iso);
  const day = `${d.getUTCFullYear()}-${two(d.getUTCMonth() + 1)}-${two(d.getUTCDate())}`;
  return `${day} ${two(d.getUTCHours())}:${two(d.getUTCMinutes())}${seconds ? `:${two(d.getUTCSeconds())}` : ""}`;
}

/** A time for an axis that spans so many seconds. */
export function tick(iso, seconds) {
  const text = time(iso, false);
  return seconds > 8 * 86400 ? text.slice(0, 10) : seconds > 86400 ? text.slice(5) : text.slice(11);
}

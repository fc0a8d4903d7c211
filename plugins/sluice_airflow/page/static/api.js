// Asks Sluice's app, which only reads, and Airflow's own API, which changes things in the user's name.

const HERE = new URL(".", document.baseURI);
const AIRFLOW = new URL("..", HERE);

export class Refused extends Error {
  constructor(status, body) {
    const detail = body?.detail;
    super(body?.what ?? (typeof detail === "string" ? detail : detail?.[0]?.msg) ?? `the server answered ${status}`);
    this.status = status;
    this.next = body?.next_step;
  }
}

async function answer(response) {
  const body = await response.json().catch(() => null);
  if (response.status === 401) login();
  if (!response.ok) throw new Refused(response.status, body);
  return body;
}

function login() {
  const next = inFrame() ? parent.location.href : location.href;
  leave(new URL(`api/v2/auth/login?next=${encodeURIComponent(next)}`, AIRFLOW));
}

const name = encodeURIComponent;

/** Asks again while the server has no answer yet because another request asks for it. */
export async function ask(path, signal, tries = 6) {
  const response = await fetch(new URL(`api/${path}`, HERE), { signal, headers: { Accept: "application/json" } });
  const wait = response.headers.get("Retry-After");
  if (response.status !== 503 || !wait || tries <= 1) return answer(response);
  await new Promise((later) => setTimeout(later, 1000 * wait));
  return signal?.aborted ? answer(response) : ask(path, signal, tries - 1);
}

export const pipelines = (signal) => ask("pipelines", signal);
export const pipeline = (p, newest, signal) => ask(`pipelines/${name(p)}?newest=${newest}`, signal);
export const runs = (p, before, limit) => ask(`pipelines/${name(p)}/runs?before=${before}&limit=${limit}`);
export const run = (p, id) => ask(`pipelines/${name(p)}/run?id=${name(id)}`);
export const lag = (p, signal) => ask(`pipelines/${name(p)}/lag`, signal);
export const losses = (p, signal) => ask(`pipelines/${name(p)}/losses`, signal);
export const log = (p, signal) => ask(`pipelines/${name(p)}/log`, signal);

const airflow = (method, path, body) =>
  fetch(new URL(`api/v2/${path}`, AIRFLOW), {
    method,
    headers: { Accept: "application/json", ...(body && { "Content-Type": "application/json" }) },
    body: body && JSON.stringify(body),
  }).then(answer);

/** The DAG as Airflow knows it; null if it has none of this id (yet). */
export const dag = (id) => airflow("GET", `dags/${name(id)}`).catch((e) => {
  if (e.status === 404) return null;
  throw e;
});
export const unpause = (id) => airflow("PATCH", `dags/${name(id)}?update_mask=is_paused`, { is_paused: false });
export const trigger = (id, conf) => airflow("POST", `dags/${name(id)}/dagRuns`, { logical_date: null, conf });

export const dataDocs = (p) => new URL(`data-docs/${name(p)}/index.html`, HERE);
export const dagRun = (id, run) => new URL(`dags/${name(id)}/runs/${name(run)}`, AIRFLOW);

export const inFrame = () => window.parent !== window;

/** Open an address in the whole window: Airflow's frame allows neither new windows nor its own replacement. */
export function leave(url) {
  const page = inFrame() ? parent.document : document;
  const a = page.createElement("a");
  a.href = url;
  page.body.append(a);
  a.click();
  a.remove();
}

// The button: asks, then triggers the maintenance DAG through Airflow's API. Airflow checks the right, and its audit log
// says who did it.

import * as api from "./api.js";
import { el } from "./dom.js";
import { plural } from "./format.js";

const WORDS = {
  lost: { title: "Redrive what is lost", what: (n) => `Open lost ranges hold ${plural(n, "offset")}. Those that Kafka or the write-ahead log still has are written, exactly once; the others stay open.` },
  quarantined: { title: "Redrive the quarantine", what: (n) => `The quarantine holds ${plural(n, "record")}. Those that decode and pass the row rules by now are written, exactly once; the others stay.` },
};

/** A button for `lost` or `quarantined`, or what to do to have one. */
export function redriveButton(pipeline, what, count, started) {
  if (!count) return null;
  if (!pipeline.maintenance)
    return el("p", { class: "quiet" }, "A button needs ", el("code", {}, "airflow: {maintenance: manual}"), " in the pipeline file. Until then: ", el("code", {}, `sluice redrive ${pipeline.name}${what === "lost" ? "" : " --quarantined"}`));
  const button = el("button", { type: "button", class: "act", disabled: !pipeline.may_redrive, onclick: () => confirm(pipeline, what, count, started) }, "Redrive…");
  if (!pipeline.may_redrive) button.title = `You may not trigger ${pipeline.maintenance}`;
  return button;
}

async function confirm(pipeline, what, count, started) {
  const id = pipeline.maintenance, said = el("p", { role: "status", class: "said" });
  const go = el("button", { type: "submit", class: "act main", disabled: true }, "Redrive");
  const form = el("form", { method: "dialog" },
    el("h2", {}, WORDS[what].title), el("p", {}, WORDS[what].what(count)),
    el("p", { class: "quiet" }, `This triggers ${id}, which then audits the pipeline. Airflow's audit log says that you did.`),
    said, el("div", { class: "buttons" }, el("button", { type: "button", class: "act", onclick: () => box.close() }, "Cancel"), go));
  const box = el("dialog", { "aria-label": WORDS[what].title }, form);
  box.addEventListener("close", () => box.remove());
  document.body.append(box);
  box.showModal();
  let paused = false;
  const tell = (text, bad) => { said.textContent = text; said.classList.toggle("bad", !!bad); };
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    go.disabled = true;
    tell("Asking Airflow…");
    try {
      if (paused) await api.unpause(id);
      const run = await api.trigger(id, { redrive: what });
      box.close();
      started(run.dag_run_id);
    } catch (e) {
      tell(e.status === 403 ? `Airflow does not allow you to trigger ${id}. Nothing was changed.` : `Airflow refused: ${e.message}`, true);
      go.disabled = false;
    }
  });
  try {
    const dag = await api.dag(id);
    if (!dag) return tell(`Airflow has no DAG ${id} yet. It appears when the pipeline file has been parsed.`, true);
    paused = dag.is_paused;
    if (paused) { tell(`${id} is paused: it is unpaused first.`); go.textContent = "Unpause and redrive"; }
    go.disabled = false;
    go.focus();
  } catch (e) {
    tell(e.message, true);
  }
}

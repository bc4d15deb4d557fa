// The walk: a cell that is pointed at or focused lights up what it was made of, and says how.
import { announce, noteState, onLeave, onResult, setState, stateNow } from "../lab.js";
import { explainWords } from "../guide.js";
import { player } from "../moving.js";
import { BEAT, MOST_CELLS, addUp, calm, light, move, rest, rove, wait } from "./walk_cells.js";

const LAST_STEP = 6;
const region = document.getElementById("result");

function step(to) {
  const now = Number(stateNow().step);
  const next = Math.min(LAST_STEP, Math.max(0, to));
  if (next === now) return;
  noteState({ step: String(next) });
  const onStep = document.activeElement.matches("button[data-step]");
  show(next);
  if (onStep) region.querySelector("[aria-current=step]").focus({ preventScroll: true });
  const stage = region.querySelector(`#stage-${next}`);
  announce(`Step ${next}: ${stage.querySelector("h2").lastChild.textContent.trim()}. ${stage.querySelector("p").textContent.trim()}`);
}

function show(which) {
  region.querySelector("#flow").dataset.step = which;
  const focused = document.activeElement;
  for (const stage of region.querySelectorAll(".stage")) stage.classList.toggle("now", stage.id === `stage-${which}`);
  for (const button of region.querySelectorAll("[data-step]:is(button)")) {
    if (button.dataset.step === String(which)) button.setAttribute("aria-current", "step");
    else button.removeAttribute("aria-current");
  }
  for (const [id, end] of [["walk-back", 0], ["walk-next", LAST_STEP]]) {
    region.querySelector(`#${id}`).setAttribute("aria-disabled", String(which === end));
  }
  if (region.contains(focused) && !focused.checkVisibility()) region.querySelector(`#stage-${which} td[tabindex="0"]`)?.focus({ preventScroll: true });
  const stage = region.querySelector(`#stage-${which}`);
  explainWords(stage);
  if (region.querySelector("#flow.all")) stage.scrollIntoView({ block: "nearest", behavior: calm.matches ? "auto" : "smooth" });
}

/** From this step to the last, a few cells of each. */
const playing = player("walk-play", async (alive) => {
  if (Number(stateNow().step) === LAST_STEP) step(0);
  for (;;) {
    const now = Number(stateNow().step);
    const cells = [...region.querySelectorAll(`#stage-${now} td[data-made]`)].filter((cell) => !cell.matches(".masked"));
    for (const cell of cells.slice(0, MOST_CELLS)) {
      await addUp(region, cell, alive);
      if (!alive()) return;
    }
    await wait(2 * BEAT);
    if (!alive() || now === LAST_STEP) return;
    step(now + 1);
  }
});

function keys(event) {
  const cell = event.target.closest("td[data-key]");
  if (event.key === "PageDown" || event.key === "PageUp") {
    event.preventDefault();
    step(Number(stateNow().step) + (event.key === "PageDown" ? 1 : -1));
  } else if (cell && event.key === "Enter" && !calm.matches) playing.once((alive) => addUp(region, cell, alive));
  else if (cell) move(cell, event);
  else if (event.target.closest("[data-step]") && (event.key === "ArrowRight" || event.key === "ArrowLeft")) {
    event.preventDefault();
    step(Number(stateNow().step) + (event.key === "ArrowRight" ? 1 : -1));
  }
}

const rowsOf = (text) => text.split(";").map((row) => row.split(","));

function resized(text, rows, columns) {
  const old = rowsOf(text);
  const entry = (i, j) => old[i]?.[j] ?? "0";
  const line = (i) => Array.from({ length: columns ?? old[0].length }, (_, j) => entry(i, j)).join(",");
  return Array.from({ length: rows ?? old.length }, (_, i) => line(i)).join(";");
}

/** A matrix that grew or shrank takes along the ones that have to fit it. */
function fit(name) {
  const state = stateNow();
  const now = rowsOf(state[name]);
  const [rows, columns] = [now.length, now[0].length];
  const oneHead = state.heads === "1" && state.kvheads === "1";
  const texts = {};
  const take = (other, down, across) => {
    if (other !== name) texts[other] = resized(texts[other] ?? state[other], down, across);
  };
  if (name === "x") ["wq", "wk", "wv"].forEach((other) => take(other, columns, null));
  if (["wq", "wk", "wv"].includes(name)) {
    take("x", null, rows);
    ["wq", "wk", "wv"].forEach((other) => take(other, rows, null));
    if (oneHead && name !== "wv") ["wq", "wk"].forEach((other) => take(other, rows, columns));
  }
  if (name === "k" || name === "v") ["k", "v"].forEach((other) => take(other, rows, null));
  if (oneHead && (name === "q" || name === "k")) ["q", "k"].forEach((other) => take(other, null, columns));
  setState(texts);
}

region.addEventListener("pointerover", (event) => {
  const cell = event.target.closest("td[data-key]");
  if (playing.on) return;
  if (cell) light(region, cell);
  else rest(region);
});
region.addEventListener("pointerleave", () => playing.on || rest(region));
region.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  const cell = event.target.closest("td[data-made]");
  const now = Number(stateNow().step);
  if (button?.id === "walk-play") return;
  if (button || cell) playing.stop();
  if (cell && !calm.matches) playing.once((alive) => addUp(region, cell, alive));
  if (button?.dataset.step) step(Number(button.dataset.step));
  else if (button?.id === "walk-next") step(now + 1);
  else if (button?.id === "walk-back") step(now - 1);
});
region.addEventListener("focusin", (event) => {
  const cell = event.target.closest("td[data-key]");
  if (!cell) return rest(region);
  rove(cell);
  if (!playing.on) light(region, cell);
  announce(region.querySelector("#why").textContent);
});
region.addEventListener("keydown", keys);
document.getElementById("controls").addEventListener("click", (event) => {
  const button = event.target.closest("[data-grow], [data-shrink]");
  if (button) fit(button.closest("[data-field]").dataset.field);
});
onLeave(() => playing.stop());
onResult(() => region.querySelector("#flow") && show(Number(stateNow().step)));

// The walk: a cell that is pointed at or focused lights up what it was made of, and says how.
import { announce, onResult, setState, stateNow } from "../lab.js";

const LAST_STEP = 6;
let region = null;
let shownStep = null;

/** The cells of "grid:rows:columns"; a row or a column is a number, a range or a star. */
function cellsOf(part) {
  const [grid, rows, columns] = part.split(":");
  const within = (place, wanted) => {
    if (wanted === "*") return true;
    const [low, high = low] = wanted.split("-");
    return Number(place) >= Number(low) && Number(place) <= Number(high);
  };
  return [...region.querySelectorAll(`td[data-key^="${CSS.escape(grid)}:"]`)].filter((cell) => {
    const [, r, c] = cell.dataset.key.split(":");
    return within(r, rows) && within(c, columns);
  });
}

function clear() {
  for (const cell of region.querySelectorAll(".lit, .lit-2, .made")) cell.classList.remove("lit", "lit-2", "made");
}

function light(cell) {
  clear();
  cell.classList.add("made");
  (cell.dataset.made ?? "").split(" ").filter(Boolean).forEach((part, which) => {
    for (const one of cellsOf(part)) one.classList.add(which ? "lit-2" : "lit");
  });
  region.querySelector("#why").textContent = cell.dataset.why ?? given(cell);
}

function given(cell) {
  return `${cell.closest("table").getAttribute("aria-label").split(",")[0]}: ${cell.textContent.trim()}`;
}

function rest() {
  const focused = document.activeElement?.closest?.("td[data-key]");
  if (focused && region.contains(focused)) light(focused);
  else {
    clear();
    region.querySelector("#why")?.replaceChildren();
  }
}

function move(cell, event) {
  const [grid, r, c] = cell.dataset.key.split(":");
  const all = [...cell.closest("tbody").querySelectorAll("td[data-key]")];
  const at = (row, column) => all.find((each) => each.dataset.key === `${grid}:${row}:${column}`);
  const row = Number(r);
  const column = Number(c);
  const ends = all.filter((each) => each.dataset.key.startsWith(`${grid}:${r}:`));
  const to = {
    ArrowUp: () => at(row - 1, column),
    ArrowDown: () => at(row + 1, column),
    ArrowLeft: () => at(row, column - 1),
    ArrowRight: () => at(row, column + 1),
    Home: () => (event.ctrlKey ? all[0] : ends[0]),
    End: () => (event.ctrlKey ? all.at(-1) : ends.at(-1)),
  }[event.key]?.();
  if (event.key.startsWith("Arrow") || to) event.preventDefault();
  to?.focus();
}

function rove(cell) {
  for (const each of cell.closest("tbody").querySelectorAll('td[tabindex="0"]')) each.tabIndex = -1;
  cell.tabIndex = 0;
}

async function step(by) {
  const now = Number(stateNow().step);
  const next = Math.min(LAST_STEP, Math.max(0, now + by));
  if (next === now) return;
  const onControl = document.activeElement?.closest?.("[data-step]") !== null;
  await setState({ step: String(next) });
  if (onControl) region.querySelector(`[data-step="${next}"]`).focus({ preventScroll: true });
}

function show(which) {
  const stage = region.querySelector(`#stage-${which}`);
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  stage.scrollIntoView({ block: "nearest", behavior: still ? "auto" : "smooth" });
  announce(`Step ${which}: ${stage.querySelector("h2").lastChild.textContent.trim()}. ${stage.querySelector("p").textContent.trim()}`);
}

function keys(event) {
  const cell = event.target.closest("td[data-key]");
  if (event.key === "PageDown" || event.key === "PageUp") {
    event.preventDefault();
    step(event.key === "PageDown" ? 1 : -1);
  } else if (cell) move(cell, event);
  else if (event.target.closest("[data-step]") && (event.key === "ArrowRight" || event.key === "ArrowLeft")) {
    event.preventDefault();
    step(event.key === "ArrowRight" ? 1 : -1);
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

function start(element) {
  region = element;
  region.addEventListener("pointerover", (event) => {
    const cell = event.target.closest("td[data-key]");
    if (cell) light(cell);
    else rest();
  });
  region.addEventListener("pointerleave", rest);
  region.addEventListener("focusin", (event) => {
    const cell = event.target.closest("td[data-key]");
    if (!cell) return rest();
    rove(cell);
    light(cell);
    announce(region.querySelector("#why").textContent);
  });
  region.addEventListener("keydown", keys);
  document.getElementById("controls").addEventListener("click", (event) => {
    const button = event.target.closest("[data-grow], [data-shrink]");
    if (button) fit(button.closest("[data-field]").dataset.field);
  });
}

start(document.getElementById("result"));
onResult((element) => {
  const now = Number(element.querySelector("[aria-current=step]")?.dataset.step ?? 0);
  if (shownStep !== null && now !== shownStep) show(now);
  shownStep = now;
});

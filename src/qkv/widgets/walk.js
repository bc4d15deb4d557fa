// The walk of a notebook (anywidget): steps, tables and sentences come from Python; this draws them and moves.
import { BEAT, MOST_CELLS, addUp, calm, light, move, rest, rove, wait } from "./walk_cells.js";

function made(name, words, attributes = {}) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (words) element.textContent = words;
  return element;
}

/** A letter with its place, and the word of the token. */
function heading(scope, { letter, place, word }) {
  const cell = made("th", letter, { scope });
  cell.append(made("sub", String(place)));
  if (word) cell.append(" ", made("span", word, { class: "word" }));
  return cell;
}

function drawn(grid, maker) {
  const figure = made("figure", "", { "data-grid": grid.id });
  const label = `${grid.title}, ${grid.rows.length} rows`;
  const table = made("table", "", { class: "walk-table", role: "grid", "aria-label": label });
  const first = made("tr");
  first.append(made("td"));
  grid.rows[0].forEach((_, c) => {
    first.append(grid.columnNames ? heading("col", grid.columnNames[c]) : made("th", String(c + 1), { scope: "col" }));
  });
  const head = made("thead");
  head.append(first);
  const body = made("tbody");
  grid.rows.forEach((row, r) => {
    const line = made("tr");
    line.append(heading("row", grid.rowNames[r]));
    row.forEach((cell, c) => line.append(cellOf(grid, cell, r, c, maker)));
    body.append(line);
  });
  table.append(head, body);
  figure.append(made("figcaption", grid.title), table);
  return figure;
}

function cellOf(grid, cell, r, c, maker) {
  const key = `${grid.id}:${r}:${c}`;
  const drawnCell = made("td", "", { tabindex: r || c ? "-1" : "0", "data-key": key });
  if (maker && grid.made) drawnCell.dataset.made = grid.made.replaceAll("{r}", r).replaceAll("{c}", c);
  if (cell.why) drawnCell.dataset.why = cell.why;
  if (cell.masked) {
    drawnCell.className = "masked";
    drawnCell.setAttribute("aria-label", "masked");
    drawnCell.append(made("span", cell.text, { "aria-hidden": "true" }));
    return drawnCell;
  }
  drawnCell.append(made("data", cell.text, { value: String(cell.value) }));
  if (grid.bars) {
    drawnCell.classList.add("weight");
    drawnCell.style.setProperty("--weight", String(cell.value));
    drawnCell.append(made("span", "", { class: "bar", "aria-hidden": "true" }));
  }
  return drawnCell;
}

function render({ model, el }) {
  const { stages, notes } = model.get("data");
  const last = stages.length - 1;
  const grids = new Map(stages.flatMap((stage) => stage.grids).map((grid) => [grid.id, grid]));
  let playing = 0; // what plays ends when this changes
  let wasPlaying = false;

  const region = made("div", "", { class: "qkv-walk", role: "group", "aria-label": "Attention step by step" });
  const bar = made("div", "", { class: "bar-of-steps" });
  const [back, play, next] = ["Back", "Play", "Next"].map((words) => made("button", words, { type: "button" }));
  next.className = "chosen";
  const steps = stages.map((stage, n) => made("button", stage.title, { type: "button", "data-step": String(n) }));
  bar.append(back, play, next, ...steps);
  const flow = made("div", "", { class: "flow" });
  const why = made("p", "", { class: "why", "aria-live": "polite" });
  region.append(bar, ...notes.map((note) => made("p", note, { class: "notice" })), flow, why);
  el.append(region);

  function show() {
    const now = model.get("step");
    const stage = stages[now];
    const current = made("section", "", { class: "now", "data-stage": String(now) });
    current.append(made("h4", `${now}. ${stage.title}`), made("p", stage.words));
    const tables = made("div", "", { class: "tables" });
    tables.append(...stage.grids.map((grid) => drawn(grid, true)));
    current.append(tables);
    const before = made("div", "", { class: "from tables" });
    before.append(...stage.from.map((name) => drawn(grids.get(name), false)));
    flow.replaceChildren(...(stage.from.length ? [before, current] : [current]));
    why.textContent = "";
    steps.forEach((button, n) => {
      if (n === now) button.setAttribute("aria-current", "step");
      else button.removeAttribute("aria-current");
    });
    // A disabled button would lose the focus.
    back.setAttribute("aria-disabled", String(now === 0));
    next.setAttribute("aria-disabled", String(now === last));
  }

  function go(to) {
    const place = Math.min(last, Math.max(0, to));
    if (place === model.get("step")) return;
    model.set("step", place);
    model.save_changes();
  }

  function label(on) {
    wasPlaying = on;
    play.hidden = calm.matches;
    play.textContent = on ? "Pause" : "Play";
  }

  function stop() {
    playing += 1;
    label(false);
  }

  function addAlone(cell) {
    const mine = (playing += 1);
    addUp(region, cell, () => mine === playing);
  }

  async function start() {
    const mine = (playing += 1);
    label(true);
    if (model.get("step") === last) go(0);
    for (;;) {
      const now = model.get("step");
      const cells = [...flow.querySelectorAll(".now td[data-made]:not(.masked)")].slice(0, MOST_CELLS);
      for (const cell of cells) {
        await addUp(region, cell, () => mine === playing);
        if (mine !== playing) return;
      }
      await wait(2 * BEAT);
      if (mine !== playing) return;
      if (now === last) break;
      go(now + 1);
    }
    stop();
  }

  bar.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button === play && !wasPlaying) {
      start();
      return;
    }
    stop();
    if (button === next) go(model.get("step") + 1);
    else if (button === back) go(model.get("step") - 1);
    else if (button.dataset.step) go(Number(button.dataset.step));
  });
  flow.addEventListener("click", (event) => {
    const cell = event.target.closest("td[data-key]");
    if (!cell) return;
    stop();
    if (cell.dataset.made && !calm.matches) addAlone(cell);
    else light(region, cell);
  });
  flow.addEventListener("pointerover", (event) => {
    const cell = event.target.closest("td[data-key]");
    if (wasPlaying) return;
    if (cell) light(region, cell);
    else rest(region);
  });
  flow.addEventListener("pointerleave", () => wasPlaying || rest(region));
  flow.addEventListener("focusin", (event) => {
    const cell = event.target.closest("td[data-key]");
    if (!cell) return;
    rove(cell);
    if (!wasPlaying) light(region, cell);
  });
  region.addEventListener("keydown", (event) => {
    const cell = event.target.closest("td[data-key]");
    if (event.key === "PageDown" || event.key === "PageUp") {
      event.preventDefault();
      stop();
      go(model.get("step") + (event.key === "PageDown" ? 1 : -1));
      flow.querySelector('.now td[tabindex="0"]').focus({ preventScroll: true });
    } else if (cell && event.key === "Enter" && cell.dataset.made && !calm.matches) addAlone(cell);
    else if (cell) move(cell, event);
    // The notebook has keys too: arrows would go to another of its cells.
    if (event.key !== "Tab" && event.key !== "Escape") event.stopPropagation();
  });

  model.on("change:step", show);
  calm.addEventListener("change", stop);
  show();
  label(false);
  return () => {
    playing += 1;
    model.off("change:step", show);
    calm.removeEventListener("change", stop);
  };
}

export default { render };

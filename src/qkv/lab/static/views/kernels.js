// One cell of the five weight maps: pointed at or walked to with the arrow keys, it is shown in all of them at once.
import { announce, onResult } from "../lab.js";
import { placeIn, stepped } from "../moving.js";

let chosen = null; // [row, column], kept from one result to the next

function start(result) {
  const maps = [...result.querySelectorAll(".kernel-map")].map((figure) => ({
    figure,
    cells: [...figure.querySelectorAll(".qkv-cells > g")].map((row) => [...row.children]),
  }));
  if (!maps.length) return;
  const size = maps[0].cells.length;
  const here = chosen && chosen.every((at) => at < size) ? chosen : [0, 0];

  for (const map of maps) {
    // A picture hides its parts from screen readers; these can be gone through.
    map.figure.querySelector("svg").setAttribute("role", "group");
    enter(map, here);
    // On the figure: listening for the focus would make the picture itself a stop of the tab key.
    for (const kind of ["pointerover", "focusin"]) {
      map.figure.addEventListener(kind, (event) => {
        const place = placeOf(map, event.target);
        if (place) show(result, maps, place);
      });
    }
    map.figure.addEventListener("click", (event) => {
      const place = placeOf(map, event.target);
      if (place) walk(map, place);
    });
    map.figure.addEventListener("keydown", (event) => {
      const place = placeOf(map, event.target);
      const next = place && stepped(event, map.cells, place);
      if (!next) return;
      event.preventDefault();
      walk(map, next);
      announce(map.cells[next[0]][next[1]].firstElementChild.textContent);
    });
  }
  if (chosen) show(result, maps, here);
}

function placeOf(map, target) {
  const cell = target.closest?.(".qkv-cells rect");
  return cell && placeIn(map.cells, cell);
}

// One cell of a map is in the order of the tab key, the one that was there last.
function enter(map, [row, column]) {
  for (const cell of map.figure.querySelectorAll(".qkv-cells [tabindex]")) {
    for (const name of ["tabindex", "role", "aria-label", "data-key"]) cell.removeAttribute(name);
  }
  const cell = map.cells[row][column];
  cell.setAttribute("tabindex", "0");
  cell.setAttribute("role", "img");
  cell.setAttribute("data-key", `${map.figure.dataset.kernel}-${row}-${column}`); // where the focus goes back to
  cell.setAttribute("aria-label", `${map.figure.dataset.label}, ${cell.firstElementChild.textContent}`);
  return cell;
}

function walk(map, place) {
  enter(map, place).focus({ preventScroll: false });
}

function show(result, maps, [row, column]) {
  chosen = [row, column];
  for (const old of result.querySelectorAll(".kernel-map .pointed")) old.classList.remove("pointed");
  for (const { figure, cells } of maps) {
    const cell = cells[row][column];
    cell.classList.add("pointed");
    const [where, weight] = cell.firstElementChild.textContent.split(": ");
    result.querySelector(".kernel-pointed .where").textContent = where;
    result.querySelector(`.kernel-pointed [data-of="${figure.dataset.kernel}"]`).textContent = weight;
  }
}

onResult(start);

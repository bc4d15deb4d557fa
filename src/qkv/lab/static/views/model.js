// Arrow keys over the heads, over the tokens and over the cells of the map; a cell that is chosen gives its row.
import { announce, onLeave, onResult, setState } from "../lab.js";

const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
let places = {}; // how far each scrolled part was scrolled
let here = [0, 0]; // the cell that the keyboard is at

function within(at, count) {
  return Math.min(Math.max(at, 0), count - 1);
}

/** One tab stop for many buttons, in rows as the page has them or in one. */
function rove(group) {
  const lines = group.querySelectorAll("tbody tr");
  const rows = (lines.length ? [...lines] : [group]).map((line) => [...line.querySelectorAll("button")]);
  group.addEventListener("keydown", (event) => {
    const step = STEPS[event.key];
    const from = rows.findIndex((row) => row.includes(event.target));
    if (!step || from < 0) return;
    event.preventDefault();
    const alone = rows.length === 1;
    const row = rows[within(from + step[0], rows.length)];
    const to = row[within(rows[from].indexOf(event.target) + step[1] + (alone ? step[0] : 0), row.length)];
    event.target.tabIndex = -1;
    to.tabIndex = 0;
    to.focus();
  });
}

/** Scrolls a part, and not the page, until what is chosen in it can be seen. */
function reveal(part, chosen) {
  const whole = part.getBoundingClientRect();
  const { top, bottom, left, right } = chosen.getBoundingClientRect();
  if (top < whole.top || bottom > whole.bottom) part.scrollTop += (top + bottom - whole.top - whole.bottom) / 2;
  if (left < whole.left || right > whole.right) part.scrollLeft += (left + right - whole.left - whole.right) / 2;
}

function openMap(map, said) {
  const lines = [...map.querySelectorAll(".qkv-cells > g")];
  const rows = lines.map((row) => [...row.children]);
  lines[Number(map.dataset.query) - 1]?.classList.add("taken");
  const show = (moved) => {
    here = [within(here[0] + moved[0], rows.length), within(here[1] + moved[1], rows.length)];
    map.querySelector(".here")?.classList.remove("here");
    const cell = rows[here[0]][here[1]];
    cell.classList.add("here");
    cell.scrollIntoView({ block: "nearest", inline: "nearest" });
    said.textContent = cell.textContent;
    announce(cell.textContent);
  };
  map.addEventListener("keydown", (event) => {
    if (STEPS[event.key]) show(map.querySelector(".here") ? STEPS[event.key] : [0, 0]);
    else if (event.key === "Enter") setState({ query: String(here[0] + 1) });
    else return;
    event.preventDefault();
  });
  map.addEventListener("click", (event) => {
    const row = rows.findIndex((cells) => cells.includes(event.target));
    if (row < 0) return;
    here = [row, rows[row].indexOf(event.target)];
    setState({ query: String(row + 1) });
  });
}

onLeave((result) => {
  places = {};
  for (const part of result.querySelectorAll(".scroll[id]")) places[part.id] = [part.scrollLeft, part.scrollTop];
});

onResult((result) => {
  for (const [id, [left, top]] of Object.entries(places)) result.querySelector(`#${id}`)?.scrollTo(left, top);
  for (const group of result.querySelectorAll("[data-rove]")) rove(group);
  const heads = result.querySelector("#heads");
  if (heads) reveal(heads, heads.querySelector("[aria-pressed=true]"));
  const map = result.querySelector("#map");
  if (map) openMap(map, result.querySelector("#cell"));
});

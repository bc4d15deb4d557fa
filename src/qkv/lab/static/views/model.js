// Arrow keys over the heads, over the tokens and over the cells of the map; a cell that is chosen gives its row.
import { announce, onResult, setState } from "../lab.js";
import { placeIn, reveal, stepped } from "../moving.js";

let here = [0, 0]; // the cell that the keyboard is at

/** One tab stop for many buttons, in rows as the page has them or in one. */
function rove(group) {
  const lines = group.querySelectorAll("tbody tr");
  const rows = (lines.length ? [...lines] : [group]).map((line) => [...line.querySelectorAll("button")]);
  group.addEventListener("keydown", (event) => {
    const from = placeIn(rows, event.target);
    const to = from && stepped(event, rows, from);
    if (!to) return;
    event.preventDefault();
    event.target.tabIndex = -1;
    const next = rows[to[0]][to[1]];
    next.tabIndex = 0;
    next.focus();
  });
}

function openMap(map, said) {
  const lines = [...map.querySelectorAll(".qkv-cells > g")];
  const rows = lines.map((row) => [...row.children]);
  lines[Number(map.dataset.query) - 1]?.classList.add("taken");
  map.addEventListener("keydown", (event) => {
    const began = map.querySelector(".here");
    const from = here.map((at) => Math.min(at, rows.length - 1)); // of another text
    const to = stepped(event, rows, from);
    if (!to && event.key !== "Enter") return;
    event.preventDefault();
    if (!to) return setState({ query: String(from[0] + 1) });
    here = began ? to : from;
    began?.classList.remove("here");
    const cell = rows[here[0]][here[1]];
    cell.classList.add("here");
    cell.scrollIntoView({ block: "nearest", inline: "nearest" });
    said.textContent = cell.textContent;
    announce(cell.textContent);
  });
  map.addEventListener("click", (event) => {
    const place = placeIn(rows, event.target);
    if (!place) return;
    here = place;
    setState({ query: String(place[0] + 1) });
  });
}

onResult((result) => {
  for (const group of result.querySelectorAll("[data-rove]")) rove(group);
  const heads = result.querySelector("#heads");
  if (heads) reveal(heads, heads.querySelector("[aria-pressed=true]"));
  const map = result.querySelector("#map");
  if (map) openMap(map, result.querySelector("#cell"));
});

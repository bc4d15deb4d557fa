// The cells of a walk: what one was made of lights up, and a product adds up term by term. The lab's view and the
// notebook's widget (src/qkv/widgets) use it; the region is the element with the tables and the sentence ".why".
export const calm = matchMedia("(prefers-reduced-motion: reduce)");
export const BEAT = 420; // milliseconds for a term of a sum
export const MOST_CELLS = 9; // that a step plays

/** The cells of "grid:rows:columns"; a row or a column is a number, a range or a star. */
function cellsOf(region, part) {
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

function clear(region) {
  for (const cell of region.querySelectorAll(".lit, .lit-2, .made")) cell.classList.remove("lit", "lit-2", "made");
}

const partsOf = (region, cell) =>
  (cell.dataset.made ?? "").split(" ").filter(Boolean).map((part) => cellsOf(region, part));

export function light(region, cell) {
  clear(region);
  cell.classList.add("made");
  partsOf(region, cell).forEach((cells, which) => {
    for (const one of cells) one.classList.add(which ? "lit-2" : "lit");
  });
  region.querySelector(".why").textContent = cell.dataset.why ?? given(cell);
}

function given(cell) {
  return `${cell.closest("table").getAttribute("aria-label").split(",")[0]}: ${cell.textContent.trim()}`;
}

/** Nothing is pointed at: the focused cell counts. */
export function rest(region) {
  const focused = document.activeElement?.closest?.("td[data-key]");
  if (focused && region.contains(focused)) light(region, focused);
  else {
    clear(region);
    region.querySelector(".why")?.replaceChildren();
  }
}

export function move(cell, event) {
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

export function rove(cell) {
  for (const each of cell.closest("tbody").querySelectorAll('td[tabindex="0"]')) each.tabIndex = -1;
  cell.tabIndex = 0;
}

export const wait = (time) => new Promise((resolve) => setTimeout(resolve, time));
const valueOf = (cell) => {
  const [above, below = "1"] = cell.querySelector("data").value.split("/");
  return Number(above) / Number(below);
};
const shortly = (value) => String(Number(value.toPrecision(4))).replace("-", "−");
const factor = (value) => (value < 0 ? `(${shortly(value)})` : shortly(value));

/** The row times the column that made a cell, term by term with the sum so far; then what the library says of it.
 *  `going` says whether it is still wanted. */
export async function addUp(region, cell, going) {
  light(region, cell);
  const [row, column = []] = partsOf(region, cell);
  const why = region.querySelector(".why");
  const numbers = [...(row ?? []), ...column].every((each) => each.querySelector("data"));
  if (row?.length && row.length === column.length && row.length <= 8 && numbers) {
    let sum = 0;
    let terms = "";
    for (const [n, one] of row.entries()) {
      const [a, b] = [valueOf(one), valueOf(column[n])];
      sum += a * b;
      terms += `${n ? " + " : ""}${factor(a)}·${factor(b)}`;
      for (const each of [one, column[n]]) each.classList.add("term");
      why.textContent = `${terms} = ${shortly(sum)}${n < row.length - 1 ? " …" : ""}`;
      await wait(BEAT);
      for (const each of region.querySelectorAll(".term")) each.classList.remove("term");
      if (!going()) return;
    }
  } else await wait(BEAT);
  if (going()) light(region, cell);
  await wait(BEAT);
}

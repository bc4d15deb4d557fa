// Matrices that are typed cell by cell: arrow keys move, buttons grow and shrink, a pasted table fills.

function cells(field) {
  return [...field.querySelectorAll("tr")].map((row) => [...row.querySelectorAll("input")]);
}

const DECIMAL_COMMA = /^([+\-−]?\d*),(\d+)$/;

/** A cell's text as the state keeps it: commas and semicolons stand between cells there. */
function kept(text) {
  return text.trim().replace(DECIMAL_COMMA, "$1.$2").replace(/[,;]/g, " ");
}

function store(field) {
  const text = cells(field).map((row) => row.map((cell) => kept(cell.value)).join(",")).join(";");
  field.querySelector("input[type=hidden]").value = text;
}

/** Says something about the grid, until it changes again. */
function note(field, words) {
  let place = field.querySelector(".note");
  if (!place) {
    place = document.createElement("p");
    place.className = "help note";
    place.setAttribute("role", "status");
    field.append(place);
  }
  place.textContent = words;
}

export function writeGrid(field, text) {
  const table = field.querySelector("table");
  const rows = text.split(";").map((row) => row.split(",").map((each) => each.trim()));
  const now = cells(field);
  if (now.length === rows.length && now.every((row, i) => row.length === rows[i].length)) {
    now.forEach((row, i) => row.forEach((cell, j) => cell.value !== rows[i][j] && (cell.value = rows[i][j])));
    return;
  }
  const name = field.querySelector("input").getAttribute("aria-label");
  const model = field.querySelector("tr input").cloneNode();
  const label = (model.getAttribute("aria-label") ?? name ?? "").replace(/ row \d+ column \d+$/, "");
  const body = document.createElement("tbody");
  rows.forEach((row, i) => {
    const line = body.insertRow();
    row.forEach((each, j) => {
      const cell = model.cloneNode();
      cell.removeAttribute("aria-invalid");
      cell.value = each;
      cell.setAttribute("aria-label", `${label} row ${i + 1} column ${j + 1}`);
      line.insertCell().append(cell);
    });
  });
  table.replaceChildren(body);
}

function limits(field) {
  const { rows, columns } = field.querySelector("fieldset").dataset;
  return { row: Number(rows), column: Number(columns) };
}

function resize(field, { grow, shrink }) {
  const most = limits(field);
  const rows = cells(field).map((row) => row.map((cell) => cell.value));
  const count = { row: rows.length, column: rows[0].length };
  note(field, grow && count[grow] >= most[grow] ? `At most ${most[grow]} ${grow}s.` : "");
  if (grow === "row" && count.row < most.row) rows.push(rows[0].map(() => "0"));
  if (grow === "column" && count.column < most.column) rows.forEach((row) => row.push("0"));
  if (shrink === "row" && count.row > 1) rows.pop();
  if (shrink === "column" && count.column > 1) rows.forEach((row) => row.pop());
  writeGrid(field, rows.map((row) => row.map(kept).join(",")).join(";"));
  store(field);
}

function move(field, from, event) {
  const rows = cells(field);
  const i = rows.findIndex((row) => row.includes(from));
  const j = rows[i].indexOf(from);
  const ends = from.selectionStart === from.selectionEnd;
  const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], Enter: [1, 0] }[event.key]
    ?? (event.key === "ArrowLeft" && ends && from.selectionStart === 0 ? [0, -1] : null)
    ?? (event.key === "ArrowRight" && ends && from.selectionEnd === from.value.length ? [0, 1] : null);
  if (!step) return;
  const to = rows[i + step[0]]?.[j + step[1]];
  if (event.key === "Enter" || to) event.preventDefault();
  to?.focus();
  to?.select();
}

/** Rows of a table as spreadsheets, Python and people write it; null for one number. */
function table(text) {
  const trimmed = text.replace(/\r/g, "").replace(/\n+$/, "");
  if (trimmed.includes("\t")) return trimmed.split("\n").map((row) => row.split("\t").map((each) => kept(each) || "0"));
  const lines = trimmed.replace(/\]\s*,\s*\[/g, ";").replace(/[[\]()]/g, " ").split(/[\n;]/);
  const rows = lines.map((line) => line.trim().split(/[\s,]+/).filter(Boolean)).filter((row) => row.length);
  return rows.length > 1 || rows[0]?.length > 1 ? rows : null;
}

function paste(field, from, event) {
  const pasted = table(event.clipboardData.getData("text"));
  if (!pasted) return false;
  event.preventDefault();
  const most = limits(field);
  const now = cells(field);
  const i = now.findIndex((row) => row.includes(from));
  const j = now[i].indexOf(from);
  // Into the first cell a table replaces what was there; elsewhere it is laid over it.
  const old = i || j ? now.map((row) => row.map((cell) => kept(cell.value))) : [];
  const high = Math.max(old.length, i + pasted.length);
  const wide = Math.max(old[0]?.length ?? 0, j + Math.max(...pasted.map((row) => row.length)));
  const rows = Array.from({ length: Math.min(high, most.row) }, (_, y) =>
    Array.from({ length: Math.min(wide, most.column) }, (_, x) => pasted[y - i]?.[x - j] ?? old[y]?.[x] ?? "0"),
  );
  writeGrid(field, rows.map((row) => row.join(",")).join(";"));
  store(field);
  note(field, high > most.row || wide > most.column ? `Only ${most.row} rows and ${most.column} columns fit: the rest was left out.` : "");
  cells(field)[i]?.[j]?.focus();
  return true;
}

export function openGrids(form, changed) {
  for (const field of form.querySelectorAll(".field-matrix")) {
    field.addEventListener("input", () => {
      store(field);
      note(field, "");
    });
    field.addEventListener("keydown", (event) => event.target.matches("td input") && move(field, event.target, event));
    field.addEventListener("paste", (event) => {
      if (event.target.matches("td input") && paste(field, event.target, event)) changed();
    });
    field.addEventListener("click", (event) => {
      const button = event.target.closest("[data-grow], [data-shrink]");
      if (!button) return;
      resize(field, button.dataset);
      changed();
    });
  }
}

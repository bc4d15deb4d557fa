// Matrices that are typed cell by cell: arrow keys move, buttons grow and shrink, a pasted table fills.

function cells(field) {
  return [...field.querySelectorAll("tr")].map((row) => [...row.querySelectorAll("input")]);
}

function store(field) {
  const text = cells(field).map((row) => row.map((cell) => cell.value.trim()).join(",")).join(";");
  field.querySelector("input[type=hidden]").value = text;
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

function resize(field, { grow, shrink }) {
  const box = field.querySelector("fieldset");
  const rows = cells(field).map((row) => row.map((cell) => cell.value));
  if (grow === "row" && rows.length < Number(box.dataset.rows)) rows.push(rows[0].map(() => "0"));
  if (grow === "column" && rows[0].length < Number(box.dataset.columns)) rows.forEach((row) => row.push("0"));
  if (shrink === "row" && rows.length > 1) rows.pop();
  if (shrink === "column" && rows[0].length > 1) rows.forEach((row) => row.pop());
  writeGrid(field, rows.map((row) => row.join(",")).join(";"));
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

function paste(field, from, event) {
  const text = event.clipboardData.getData("text");
  if (!/[\t\n;]/.test(text.trim())) return;
  event.preventDefault();
  const box = field.querySelector("fieldset");
  const rows = text.trim().split(/[\n;]/).map((row) => row.trim().split(/[\t, ]+/).slice(0, Number(box.dataset.columns)));
  writeGrid(field, rows.slice(0, Number(box.dataset.rows)).map((row) => row.join(",")).join(";"));
  store(field);
}

export function openGrids(form, changed) {
  for (const field of form.querySelectorAll(".field-matrix")) {
    field.addEventListener("input", () => store(field));
    field.addEventListener("keydown", (event) => event.target.matches("td input") && move(field, event.target, event));
    field.addEventListener("paste", (event) => {
      if (!event.target.matches("td input")) return;
      paste(field, event.target, event);
      changed();
    });
    field.addEventListener("click", (event) => {
      const button = event.target.closest("[data-grow], [data-shrink]");
      if (!button) return;
      resize(field, button.dataset);
      changed();
    });
  }
}

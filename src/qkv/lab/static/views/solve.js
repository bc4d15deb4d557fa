// The record: a field of it that is changed is written into its JSON, which is solved anew.
import { setState, stateNow } from "../lab.js";

const form = document.getElementById("controls");

// Before the frame reads the form: what was edited belonged to another text.
form.addEventListener(
  "input",
  (event) => {
    if (event.target.name === "question") form.elements.part.value = form.elements.answer.value = "";
    if (["question", "part"].includes(event.target.name)) form.elements.record.value = "";
  },
  { capture: true },
);

/** Edits the record as it is shown, or as it was edited last where that could not be read. */
function edit(change) {
  let record = JSON.parse(document.getElementById("record").dataset.json);
  try {
    record = JSON.parse(stateNow().record);
  } catch {
    // Not edited yet, or by hand into no JSON.
  }
  change(record);
  setState({ record: JSON.stringify(record) }, { push: true });
}

/** Sets what a path leads to, or takes it out. */
function put(record, path, value) {
  const names = path.split(".");
  const last = names.pop();
  const place = names.reduce((at, name) => (at[name] ??= ["asked", "givens"].includes(name) ? [] : {}), record);
  if (value !== undefined) place[last] = value;
  else if (Array.isArray(place)) place.splice(Number(last), 1);
  else delete place[last];
}

function valueOf(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text; // a name, a formula or a ratio
  }
}

const result = document.getElementById("result");
result.addEventListener("change", (event) => {
  const { record: path } = event.target.dataset;
  if (path) {
    const text = event.target.value.trim();
    const value = path.startsWith("conventions.") ? { value: valueOf(text) } : valueOf(text);
    edit((record) => put(record, path, text ? value : undefined));
  } else if (event.target.id === "record-add" && event.target.value) {
    const [option] = event.target.selectedOptions;
    edit((record) => put(record, option.value === "givens" ? `givens.${record.givens?.length ?? 0}` : option.value, JSON.parse(option.dataset.value)));
  }
});
result.addEventListener("click", (event) => {
  const drop = event.target.closest("[data-drop]");
  if (drop) edit((record) => put(record, drop.dataset.drop, undefined));
});

// The frame of every view: the form is the state, the address holds it, and an edit swaps the result.
import { openGrids, writeGrid } from "./grid.js";
import { pack, unpack } from "./address.js";
import { watchScrolling } from "./scrolling.js";
import { walkCharts } from "./tips.js";
import { copyText } from "./copying.js";
import { openFiles } from "./files.js";
import { explainWords } from "./guide.js";

const root = document.getElementById("view");
const form = document.getElementById("controls");
const result = document.getElementById("result");
const listeners = [];
const leavers = [];
const QUIET = 25; // milliseconds after the last key
const PATIENCE = 400; // milliseconds before progress is shown
const NUMBER = /^\s*[+\-−]?(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?\s*$|^\s*[+\-−]?\d+\s*\/\s*0*[1-9]\d*\s*$/i;

let running = null; // the question under way
let timer = 0;
let shownQuery = location.search.slice(1);

/** `listener` is called with the result's element now, when it is there, and after every swap. */
export function onResult(listener) {
  listeners.push(listener);
  if (result && !("pending" in result.dataset)) listener(result);
}

/** `listener` is called before a result is swapped away. */
export function onLeave(listener) {
  leavers.push(listener);
}

/** The text of every field. */
export function stateNow() {
  const state = {};
  for (const field of form.querySelectorAll("[data-field]")) {
    const name = field.dataset.field;
    const input = form.elements.namedItem(name);
    state[name] = input.type === "checkbox" ? (input.checked ? "yes" : "no") : input.value;
  }
  return state;
}

/** Writes fields and recomputes. */
export function setState(texts, { push = false } = {}) {
  write(texts);
  return compute({ push });
}

/** Writes fields and the address, where the result stays as it is. */
export function noteState(texts) {
  write(texts);
  return remember(new URLSearchParams(changed()).toString(), false);
}

/** Says a text to those who listen. */
export function announce(text) {
  document.getElementById("live").textContent = text;
}

let saying = 0;

/** Not at every key: when the hand rests. */
function announceSoon(text) {
  clearTimeout(saying);
  saying = setTimeout(() => announce(text), 700);
}

function write(texts) {
  for (const [name, text] of Object.entries(texts)) {
    const field = form.querySelector(`[data-field="${CSS.escape(name)}"]`);
    const input = form.elements.namedItem(name);
    if (!field || !input) continue;
    if (input.type === "checkbox") input.checked = text === "yes";
    else {
      if (input.tagName === "SELECT" && ![...input.options].some((each) => each.value === text)) {
        input.add(new Option(text, text));
      }
      input.value = text;
    }
    if (field.classList.contains("field-matrix")) writeGrid(field, text);
    const range = field.querySelector("[data-range]");
    if (range) range.value = "doubling" in range.dataset ? Math.round(Math.log2(Math.max(Number(text), 1))) : text;
  }
  showNeeded();
}

function showNeeded() {
  const state = stateNow();
  for (const part of form.querySelectorAll("[data-needs]")) {
    part.hidden = !part.dataset.with.split(" ").includes(state[part.dataset.needs]);
  }
}

function defaults() {
  return Object.fromEntries(
    [...form.querySelectorAll("[data-field]")].map((field) => [field.dataset.field, field.dataset.default]),
  );
}

function changed() {
  const usual = defaults();
  return Object.fromEntries(Object.entries(stateNow()).filter(([name, text]) => text !== usual[name]));
}

function soon(delay = QUIET) {
  clearTimeout(timer);
  timer = setTimeout(() => compute(), delay);
}

async function compute({ push = false } = {}) {
  clearTimeout(timer);
  running?.abort();
  const mine = (running = new AbortController());
  root.dataset.busy = "";
  const slow = setTimeout(() => showProgress("computing", 0, 0), PATIENCE);
  try {
    const answer = await fetch(`/part/${root.dataset.view}`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(stateNow()),
      signal: mine.signal,
    });
    await read(answer, mine, push);
  } catch (error) {
    if (error.name !== "AbortError") whole(`The lab does not answer: ${error.message}. Is it still running?`);
  } finally {
    clearTimeout(slow);
    if (running === mine) {
      hideProgress();
      delete root.dataset.busy;
      running = null;
    }
  }
}

async function read(answer, mine, push) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    held += value ?? "";
    const lines = held.split("\n");
    held = done ? "" : lines.pop();
    for (const line of lines) if (line && running === mine) await take(JSON.parse(line), push);
    if (done) return;
  }
}

async function take(said, push) {
  if (said.told) {
    if (document.getElementById("status").dataset.shown) showProgress(...said.told);
    else document.getElementById("status").dataset.next = JSON.stringify(said.told);
  } else if (said.problems) {
    complain(said.problems);
    await remember(new URLSearchParams(changed()).toString(), push); // what cannot be used is not lost by a reload
  }
  else if (said.refused || said.broken) whole(said.refused ?? said.broken);
  else {
    complain({});
    for (const leave of leavers) leave(result);
    const [focus, scrolls] = [remembered(), scrolled()];
    result.innerHTML = said.html;
    delete result.dataset.pending;
    result.classList.remove("stale");
    for (const part of scrolling()) part.scrollTo(...(scrolls.get(part.getAttribute("aria-label")) ?? [0, 0]));
    showPython(said.python);
    await remember(said.query, push);
    for (const listener of listeners) listener(result);
    focus();
    if (form.contains(document.activeElement)) announceSoon("The numbers are new.");
    root.dataset.computed = String(Number(root.dataset.computed ?? 0) + 1);
  }
}

const scrolling = () => result.querySelectorAll(".scroll[aria-label]");
const scrolled = () => new Map([...scrolling()].map((part) => [part.getAttribute("aria-label"), [part.scrollLeft, part.scrollTop]]));

/** Keeps the focus where it was when a result is swapped under it. */
function remembered() {
  const active = document.activeElement;
  if (!result.contains(active)) return () => {};
  const key = active.id ? `#${CSS.escape(active.id)}` : active.dataset.key ? `[data-key="${CSS.escape(active.dataset.key)}"]` : "";
  const { tagName, textContent } = active;
  const set = active.dataset.set;
  return () => {
    const again =
      (key && result.querySelector(key)) ||
      (set && result.querySelector(`[data-set="${CSS.escape(set)}"]`)) ||
      [...result.querySelectorAll(tagName)].find((each) => each.textContent === textContent && !each.disabled);
    if (again) again.focus({ preventScroll: true });
    else if (document.activeElement === document.body) result.focus({ preventScroll: true });
  };
}

function complain(problems) {
  for (const field of form.querySelectorAll("[data-field]")) {
    const said = problems[field.dataset.field] ?? "";
    const place = field.querySelector(".problem");
    place.textContent = said;
    place.hidden = !said;
    const inputs = [...field.querySelectorAll("input:not([type=hidden]), select, textarea")];
    // Of a matrix, the cells that cannot be read, where those can be told.
    const cells = inputs.filter((input) => input.closest("td") && !NUMBER.test(input.value));
    for (const input of inputs) {
      if (said && (!cells.length || cells.includes(input))) input.setAttribute("aria-invalid", "true");
      else input.removeAttribute("aria-invalid");
    }
  }
  whole(problems[""] ?? "");
  const some = Object.values(problems);
  if (some.length) {
    result.classList.add("stale");
    announce(some.join(" "));
    root.dataset.refused = String(Number(root.dataset.refused ?? 0) + 1);
  }
}

function whole(words) {
  const place = document.getElementById("whole");
  place.textContent = words;
  place.hidden = !words;
  if (words) {
    result.classList.add("stale");
    root.dataset.refused = String(Number(root.dataset.refused ?? 0) + 1);
  }
}

function showProgress(what, done, of) {
  const status = document.getElementById("status");
  const next = status.dataset.next ? JSON.parse(status.dataset.next) : null;
  if (!status.dataset.shown && next) [what, done, of] = next;
  delete status.dataset.next;
  status.dataset.shown = "yes";
  status.hidden = false;
  const bar = document.getElementById("progress");
  if (of > 0) {
    bar.max = of;
    bar.value = done;
  } else bar.removeAttribute("value");
  document.getElementById("progress-words").textContent = of > 0 ? `${what}: ${done} of ${of}` : what;
}

function hideProgress() {
  const status = document.getElementById("status");
  delete status.dataset.shown;
  delete status.dataset.next;
  status.hidden = true;
}

function showPython(text) {
  document.getElementById("program").textContent = text;
  document.getElementById("python").hidden = !text;
}

async function remember(query, push) {
  const address = await pack(location.pathname, query);
  shownQuery = query;
  history[push ? "pushState" : "replaceState"](null, "", address);
  document.getElementById("save").href = `/save/${root.dataset.view}${query ? `?${query}` : ""}`;
}

async function save(event) {
  if (shownQuery.length < 6000) return; // the link itself does it
  event.preventDefault();
  const answer = await fetch(`/save/${root.dataset.view}`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(stateNow()),
  });
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await answer.blob());
  link.download = `qkv-${root.dataset.view}.html`;
  link.click();
  URL.revokeObjectURL(link.href);
}

async function copy(button, text) {
  const before = button.dataset.words ?? button.textContent;
  button.dataset.words = before;
  const done = await copyText(text);
  button.textContent = done ? "Copied" : "This browser does not let a page copy";
  announce(button.textContent);
  setTimeout(() => (button.textContent = before), 1500);
}

function startForm() {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    compute();
  });
  form.addEventListener("input", (event) => {
    const range = event.target.dataset.range;
    if (range) {
      const value = Number(event.target.value);
      form.elements.namedItem(range).value = "doubling" in event.target.dataset ? String(2 ** value) : event.target.value;
    }
    const slider = event.target.name && form.querySelector(`[data-range="${CSS.escape(event.target.name)}"]`);
    if (slider && event.target.value.trim() && Number.isFinite(Number(event.target.value))) {
      write({ [event.target.name]: event.target.value });
    }
    if (event.target.type === "file") return;
    showNeeded();
    soon(event.target.tagName === "SELECT" || event.target.type === "checkbox" ? 0 : QUIET);
  });
  document.getElementById("cancel").addEventListener("click", () => {
    running?.abort();
    whole("Stopped. What is shown belongs to an earlier state; change something to go on.");
  });
  document.getElementById("copy").addEventListener("click", (event) =>
    copy(event.currentTarget, document.getElementById("program").textContent),
  );
  document.getElementById("link").addEventListener("click", (event) => copy(event.currentTarget, location.href));
  document.getElementById("save").addEventListener("click", save);
  document.addEventListener("click", (event) => {
    if (event.target.closest("[data-reset]")) setState(defaults(), { push: true });
    const button = event.target.closest("[data-set]");
    const preset = event.target.closest("[data-preset]");
    if (preset) setState({ ...defaults(), ...Object.fromEntries(new URLSearchParams(preset.dataset.preset)) }, { push: true });
    if (button && !button.disabled) setState(Object.fromEntries(new URLSearchParams(button.dataset.set)), { push: true });
  });
  openFiles(form, setState, (name, words) => complain({ [name]: words }));
}

async function restore() {
  const texts = await unpack(location);
  write({ ...defaults(), ...texts });
  return texts !== null;
}

async function start() {
  if (!root) return;
  openGrids(form, () => soon());
  startForm();
  showNeeded();
  onResult(() => {
    watchScrolling(document);
    walkCharts(result, announce);
    explainWords(result);
  });
  window.addEventListener("popstate", async () => {
    await restore();
    compute();
  });
  if (location.hash.startsWith("#z=")) {
    if (await restore()) await compute();
    else whole("This address was cut off: what it held is lost, and what is shown is the start.");
  } else if ("pending" in result.dataset) await compute();
  else root.dataset.computed = "1";
  root.dataset.started = "yes";
}

start();

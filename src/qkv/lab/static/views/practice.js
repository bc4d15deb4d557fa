// Another question begins afresh, a verdict is said to those who listen, and what was answered right is remembered.
import { announce, onResult } from "../lab.js";

const form = document.getElementById("controls");
const KEPT = "practice"; // in this browser: parts that were answered right before their solution was shown
const done = remembered();
let said = "";

// Before the frame reads the form: an answer to one question is none to another, and its letter may not exist there.
form.addEventListener(
  "input",
  (event) => {
    if (!["exercise", "numbers", "seed"].includes(event.target.name)) return;
    for (const name of ["part", "answer"]) form.elements[name].value = "";
    form.elements.hint.value = "0";
    if (event.target.name === "seed") form.elements.numbers.value = "fresh";
    form.elements.solution.checked = false;
  },
  { capture: true },
);

onResult((result) => {
  const verdict = result.querySelector("#verdict");
  const now = verdict?.dataset.said ?? "";
  if (now && now !== said) announce(now);
  said = now;
  const exercise = result.querySelector("[data-done]")?.dataset.done;
  if (exercise) showDone(result, exercise, verdict);
});

function showDone(result, exercise, verdict) {
  const parts = [...result.querySelectorAll(".parts button")];
  const keyOf = (button) => `${exercise}/${button.textContent.trim()}`;
  const current = parts.find((button) => button.getAttribute("aria-pressed") === "true");
  if (current && verdict?.classList.contains("verdict-right") && !result.querySelector(".solution")) {
    done.add(keyOf(current));
    try {
      localStorage.setItem(KEPT, JSON.stringify([...done]));
    } catch {
      // A browser that keeps nothing: it is remembered until the page is left.
    }
  }
  const right = parts.filter((button) => done.has(keyOf(button)));
  for (const button of right) {
    button.classList.add("done");
    const heard = document.createElement("span");
    heard.className = "heard";
    heard.textContent = ", answered right";
    button.append(heard);
  }
  result.querySelector("#done").textContent = right.length ? `Answered right: ${right.length} of ${parts.length}.` : "";
}

function remembered() {
  try {
    return new Set(JSON.parse(localStorage.getItem(KEPT) ?? "[]"));
  } catch {
    return new Set();
  }
}

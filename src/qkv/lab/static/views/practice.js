// Another question begins afresh, and a verdict is said to those who listen.
import { announce, onResult } from "../lab.js";

const form = document.getElementById("controls");
let said = "";

// Before the frame reads the form: an answer to one question is none to another, and its letter may not exist there.
form.addEventListener(
  "input",
  (event) => {
    if (!["problem", "numbers", "seed"].includes(event.target.name)) return;
    for (const name of ["part", "answer"]) form.elements[name].value = "";
    form.elements.hint.value = "0";
    if (event.target.name === "seed") form.elements.numbers.value = "fresh";
    form.elements.solution.checked = false;
  },
  { capture: true },
);

onResult((result) => {
  const now = result.querySelector("#verdict")?.dataset.said ?? "";
  if (now && now !== said) announce(now);
  said = now;
});

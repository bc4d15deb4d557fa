// A chat that is given is the one to grade; links between a claim and its verdict move the focus.
import { onResult } from "../lab.js";

const form = document.getElementById("controls");
const given = form.querySelector('[data-field="chat"]');

// Before the frame reads the form.
for (const kind of ["input", "change", "drop"]) {
  given.addEventListener(kind, () => (form.elements.source.value = "own"), { capture: true });
}

// The address holds the state: it stays as it is.
onResult((result) => {
  for (const link of result.querySelectorAll('a[href^="#"]')) {
    link.addEventListener("click", (event) => {
      const target = document.getElementById(link.hash.slice(1));
      if (!target) return;
      event.preventDefault();
      target.focus({ preventScroll: true });
      target.scrollIntoView({ block: "center" });
    });
  }
});

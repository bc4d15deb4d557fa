// The top row of the lattice is a row of radio buttons: a click or an arrow key chooses the output.
import { onLeave, onResult, setState } from "../lab.js";

const STEPS = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1, Home: -Infinity, End: Infinity };

let left = 0; // how far the lattice was scrolled before it was swapped

function choose(pick) {
  pick.focus({ preventScroll: true });
  setState({ output: pick.dataset.column });
}

/** Scrolls the lattice as it was, or to what is chosen where that would be out of sight. */
function showChosen(box, pick) {
  box.scrollLeft = left;
  const [outer, inner] = [box.getBoundingClientRect(), pick.getBoundingClientRect()];
  if (inner.left < outer.left || inner.right > outer.right) {
    box.scrollLeft += (inner.left + inner.right - outer.left - outer.right) / 2;
  }
}

onLeave((result) => {
  left = result.querySelector(".lattice .scroll")?.scrollLeft ?? 0;
});

onResult((result) => {
  const row = result.querySelector(".lattice .qkv-picks");
  if (!row) return;
  const svg = row.closest("svg");
  const now = result.querySelector('[data-path="output"]').value;
  svg.setAttribute("role", "group"); // an image would hide what is in it
  for (const part of svg.children) if (part !== row) part.setAttribute("aria-hidden", "true");
  row.setAttribute("role", "radiogroup");
  row.setAttribute("aria-label", "Output");
  const picks = [...row.children];
  picks.forEach((pick, place) => {
    const column = pick.dataset.column;
    pick.dataset.key = `output-${column}`; // where the frame puts the focus again
    pick.setAttribute("role", "radio");
    pick.setAttribute("aria-label", `output ${column}`);
    pick.setAttribute("aria-checked", String(column === now));
    pick.setAttribute("tabindex", column === now ? "0" : "-1");
    pick.addEventListener("click", () => choose(pick));
    pick.addEventListener("keydown", (event) => {
      const step = event.key === " " ? 0 : STEPS[event.key];
      if (step === undefined || event.ctrlKey || event.altKey || event.metaKey) return;
      event.preventDefault();
      choose(picks[Math.min(Math.max(place + step, 0), picks.length - 1)]);
    });
  });
  showChosen(row.closest(".scroll"), picks[Number(now) - 1]);
});

// The top row of the lattice is a row of radio buttons: a click or an arrow key chooses the output.
import { onResult, setState } from "../lab.js";
import { reveal, stepped } from "../moving.js";

function choose(pick) {
  pick.focus({ preventScroll: true });
  setState({ output: pick.dataset.column });
}

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
      const to = event.key === " " ? [0, place] : stepped(event, [picks], [0, place]);
      if (!to) return;
      event.preventDefault();
      choose(picks[to[1]]);
    });
  });
  reveal(row.closest(".scroll"), picks[Number(now) - 1]);
});

// The input's entries: arrow keys go from one to the next, + and − drag the one that was taken, and so does a pull.
import { onResult, setState, stateNow } from "../lab.js";
import { stepped } from "../moving.js";

const STEP = 0.1;
const MOST = 3;
const PIXELS = 12; // a pull of so many is one step
const DRAGS = { "+": STEP, "=": STEP, "-": -STEP, "\u2212": -STEP, PageUp: 10 * STEP, PageDown: -10 * STEP };

let pull = null; // the pull under way: where it began, and what it asks for
let asked = false;

function placeOf(button) {
  return Object.fromEntries(new URLSearchParams(button.dataset.set));
}

function rounded(value) {
  return String(Math.round(Math.min(Math.max(value, -MOST), MOST) / STEP) / Math.round(1 / STEP));
}

/** What is dragged by now: nothing, where another entry is taken. */
function begun(button) {
  return button.getAttribute("aria-pressed") === "true" ? Number(stateNow().delta) || 0 : 0;
}

async function follow() {
  if (asked) return;
  asked = true;
  while (pull?.wanted) {
    const { wanted } = pull;
    pull.wanted = null;
    await setState(wanted);
  }
  asked = false;
}

function key(event, rows, i, j) {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  const button = rows[i][j];
  const to = stepped(event, rows, [i, j]);
  if (to) {
    event.preventDefault();
    rows[to[0]][to[1]].focus();
  } else if (event.key in DRAGS) {
    event.preventDefault();
    setState({ ...placeOf(button), delta: rounded(begun(button) + DRAGS[event.key]) });
  }
}

onResult((result) => {
  const rows = [...result.querySelectorAll(".norms .inputs tbody tr")].map((row) => [...row.querySelectorAll("button")]);
  rows.forEach((row, i) =>
    row.forEach((button, j) => {
      button.tabIndex = button.getAttribute("aria-pressed") === "true" ? 0 : -1;
      button.addEventListener("keydown", (event) => key(event, rows, i, j));
      button.addEventListener("pointerdown", (event) => {
        if (event.button === 0) pull = { x: event.clientX, from: begun(button), place: placeOf(button), moved: false };
      });
    }),
  );
});

// On the window: the entry itself is swapped away while it is pulled.
window.addEventListener("pointermove", (event) => {
  const steps = pull ? Math.round((event.clientX - pull.x) / PIXELS) : 0;
  if (!pull || (!steps && !pull.moved)) return;
  pull.moved = true;
  pull.wanted = { ...pull.place, delta: rounded(pull.from + steps * STEP) };
  follow();
});
for (const end of ["pointerup", "pointercancel"]) window.addEventListener(end, () => setTimeout(() => (pull = null)));
// A pull is no click: its end takes no other entry.
window.addEventListener("click", (event) => pull?.moved && event.stopPropagation(), true);

// Arrow keys in rows of things, of which the Tab key reaches one; and a button that plays what can be stepped.
import { onResult } from "./lab.js";

const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

/** Where a key leads in rows from the place [i, j]; null for a key that leads nowhere. One row takes all four arrows. */
export function stepped(event, rows, [i, j]) {
  if (event.altKey || event.metaKey || (event.ctrlKey && event.key.startsWith("Arrow"))) return null;
  const within = (at, count) => Math.min(Math.max(at, 0), count - 1);
  const far = event.key === "Home" ? -1 : event.key === "End" ? 1 : 0;
  const [down, right] = STEPS[event.key] ?? (far ? [event.ctrlKey ? far * Infinity : 0, far * Infinity] : [null]);
  if (down === null) return null;
  const row = within(i + down, rows.length);
  return [row, within(j + right + (rows.length === 1 && down ? down : 0), rows[row].length)];
}

/** The place of a thing in rows, or null. */
export function placeIn(rows, thing) {
  const i = rows.findIndex((row) => row.includes(thing));
  return i < 0 ? null : [i, rows[i].indexOf(thing)];
}

/** Scrolls a part, and not the page, until what is chosen in it can be seen. */
export function reveal(part, chosen) {
  const whole = part.getBoundingClientRect();
  const { top, bottom, left, right } = chosen.getBoundingClientRect();
  if (top < whole.top || bottom > whole.bottom) part.scrollTop += (top + bottom - whole.top - whole.bottom) / 2;
  if (left < whole.left || right > whole.right) part.scrollLeft += (left + right - whole.left - whole.right) / 2;
}

export const calm = matchMedia("(prefers-reduced-motion: reduce)");
export const wait = (time) => new Promise((resolve) => setTimeout(resolve, time));

/** The button `id` runs `run(alive)` until it ends, is pressed again, or the page is hidden; `moves`: it is motion, which
 * a reader who asked for less does not get. */
export function player(id, run, { moves = true } = {}) {
  let turn = 0;
  const show = (words) => {
    const button = document.getElementById(id);
    if (!button) return;
    button.hidden = moves && calm.matches;
    button.textContent = words;
  };
  const made = {
    on: false,
    /** Runs something else until it ends or anything is begun. */
    async once(work) {
      const mine = (turn += 1);
      await work(() => mine === turn);
      return mine === turn;
    },
    stop() {
      turn += 1;
      made.on = false;
      show("Play");
    },
  };
  const play = async () => {
    made.on = true;
    show("Pause");
    if (await made.once(run)) made.stop();
  };
  document.addEventListener("click", (event) => event.target.closest(`#${id}`) && (made.on ? made.stop() : play()));
  document.addEventListener("visibilitychange", () => document.hidden && made.stop());
  calm.addEventListener("change", made.stop);
  onResult(() => show(made.on ? "Pause" : "Play"));
  return made;
}

// Steps of decoding by arrow keys, and one after another; a reader who asked for less motion steps by hand.
import { announce, onResult, setState, stateNow } from "../lab.js";

const PAUSE = 600; // milliseconds from one step to the next
const calm = matchMedia("(prefers-reduced-motion: reduce)");

let playing = false;
let timer = 0;
let shown = "";
let last = 0;

function step() {
  return Number(stateNow().step);
}

function go(to) {
  if (to < 0 || to > last || to === step()) return;
  setState({ step: String(to) });
}

function play(on) {
  playing = on && !calm.matches;
  clearTimeout(timer);
  if (playing) {
    announce("Playing");
    go(step() >= last ? 0 : step() + 1);
  }
  label(document.getElementById("cache-play"));
}

function label(button) {
  if (!button) return;
  button.hidden = calm.matches;
  button.textContent = playing ? "Pause" : "Play";
}

onResult((result) => {
  const figure = result.querySelector("#cache-growing");
  if (!figure) return;
  const moved = shown !== "" && shown !== figure.dataset.step;
  figure.classList.toggle("cache-moved", moved);
  shown = figure.dataset.step;
  last = Number(figure.dataset.last);
  figure.addEventListener("keydown", (event) => {
    const to = { ArrowRight: step() + 1, ArrowLeft: step() - 1, Home: 0, End: last }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    play(false);
    go(to);
  });
  const button = result.querySelector("#cache-play");
  label(button);
  button.addEventListener("click", () => play(!playing));
  for (const other of result.querySelectorAll("[data-set^='step=']")) other.addEventListener("click", () => play(false));
  clearTimeout(timer);
  if (moved && !playing) announce(`Step ${shown} of ${last}`);
  if (!playing) return;
  if (step() >= last) return play(false);
  timer = setTimeout(() => playing && go(step() + 1), PAUSE);
});

calm.addEventListener("change", () => play(false));
document.addEventListener("visibilitychange", () => document.hidden && play(false));

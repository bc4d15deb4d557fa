// Steps of decoding by arrow keys, and one after another; a reader who asked for less motion steps by hand.
import { announce, noteState, onResult, setState, stateNow } from "../lab.js";

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

const FRAME = 90; // milliseconds from one moment of the race to the next
let racing = 0;

/** The race: every moment came with the result; playing it asks for nothing. */
onResult((result) => {
  const race = result.querySelector("#race");
  clearInterval(racing);
  if (!race) return;
  if (stateNow().calibrate === "yes") noteState({ calibrate: "no" }); // it is measured and kept
  const { rows, times } = JSON.parse(race.dataset.frames);
  const slider = result.querySelector("#race-moment");
  const button = result.querySelector("#race-play");
  const put = (place, path, value, words) => Object.assign(place.querySelector("data"), { value, textContent: words }).setAttribute("data-path", path);
  const show = (moment) => {
    slider.value = moment;
    put(result.querySelector("#race-time"), `race.seconds.${moment}`, String(times[moment][0]), times[moment][1]);
    [...race.children].forEach((way, i) => {
      const [tokens, held, tokensSaid, heldSaid] = rows[moment][i];
      put(way.querySelector(".race-tokens"), `race.ways.${i}.tokens.${moment}`, String(tokens), tokensSaid);
      put(way.querySelector(".race-held"), `race.ways.${i}.held.${moment}`, String(held), heldSaid);
      way.querySelector("rect").setAttribute("width", Math.min((100 * held) / Number(race.dataset.memory), 100));
      way.classList.toggle("race-full", way.dataset.full === String(tokens));
    });
  };
  const stop = () => {
    clearInterval(racing);
    racing = 0;
    button.textContent = "Play";
    noteState({ moment: slider.value });
  };
  button.hidden = calm.matches;
  slider.addEventListener("input", () => {
    show(Number(slider.value));
    stop();
  });
  button.addEventListener("click", () => {
    if (racing) return stop();
    let moment = Number(slider.value) >= rows.length - 1 ? 0 : Number(slider.value);
    button.textContent = "Pause";
    racing = setInterval(() => {
      show((moment += 1));
      if (moment >= rows.length - 1) stop();
    }, FRAME);
  });
});

// Steps of decoding by arrow keys or one after another, and the race, whose moments all came with the result.
import { announce, noteState, onResult, setState, stateNow } from "../lab.js";
import { player, stepped, wait } from "../moving.js";

const PAUSE = 600; // milliseconds from one step to the next
const FRAME = 90; // and from one moment of the race to the next
let shown = "";
let last = 0;
let race = null;

const step = () => Number(stateNow().step);
const steps = player("cache-play", async (alive) => {
  announce("Playing");
  if (step() >= last) await setState({ step: "0" });
  while (alive() && step() < last) {
    await setState({ step: String(step() + 1) });
    await wait(PAUSE);
  }
});
const racing = player("race-play", async (alive) => {
  const moment = () => Number(race.slider.value);
  if (moment() >= race.rows.length - 1) race.show(0);
  while (alive() && moment() < race.rows.length - 1) {
    race.show(moment() + 1);
    await wait(FRAME);
  }
  noteState({ moment: race.slider.value });
});

document.addEventListener("click", (event) => event.target.closest("[data-set^='step=']") && steps.stop());

onResult((result) => {
  const figure = result.querySelector("#cache-growing");
  const moved = shown !== "" && shown !== figure.dataset.step;
  figure.classList.toggle("cache-moved", moved);
  shown = figure.dataset.step;
  last = Number(figure.dataset.last);
  figure.addEventListener("keydown", (event) => {
    const to = stepped(event, [Array(last + 1).fill()], [0, step()]);
    if (!to) return;
    event.preventDefault();
    steps.stop();
    if (to[1] !== step()) setState({ step: String(to[1]) });
  });
  if (moved && !steps.on) announce(`Step ${shown} of ${last}`);
});

onResult((result) => {
  if (racing.on) racing.stop();
  if (stateNow().calibrate === "yes") noteState({ calibrate: "no" }); // it is measured and kept
  const ways = result.querySelector("#race");
  const { rows, times } = JSON.parse(ways.dataset.frames);
  const slider = result.querySelector("#race-moment");
  const put = (place, path, value, words) => Object.assign(place.querySelector("data"), { value, textContent: words }).setAttribute("data-path", path);
  const show = (moment) => {
    slider.value = moment;
    put(result.querySelector("#race-time"), `race.seconds.${moment}`, String(times[moment][0]), times[moment][1]);
    [...ways.children].forEach((way, i) => {
      const [tokens, held, tokensSaid, heldSaid] = rows[moment][i];
      put(way.querySelector(".race-tokens"), `race.ways.${i}.tokens.${moment}`, String(tokens), tokensSaid);
      put(way.querySelector(".race-held"), `race.ways.${i}.held.${moment}`, String(held), heldSaid);
      way.querySelector("rect").setAttribute("width", Math.min((100 * held) / Number(ways.dataset.memory), 100));
      way.classList.toggle("race-full", way.dataset.full === String(tokens));
    });
  };
  race = { rows, slider, show };
  slider.addEventListener("input", () => {
    racing.stop();
    show(Number(slider.value));
    noteState({ moment: slider.value });
  });
});

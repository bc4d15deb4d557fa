// Play writes one token after another, without the weights of a head, which take longer; a page that is left, hidden or edited stops.
import { announce, onResult, setState, stateNow } from "../lab.js";

let playing = false;

function stop() {
  playing = false;
  const button = document.getElementById("generate-play");
  if (button) button.textContent = "Play";
}

onResult((result) => {
  const button = result.querySelector("#generate-play");
  if (!button) return;
  const newest = result.querySelector(".generate-new:last-child");
  if (newest && !playing) announce(`Written: ${newest.textContent}`);
  const on = () => setState({ new: String(Number(stateNow().new) + 1), look: "no" });
  button.addEventListener("click", () => {
    if (playing) return stop();
    playing = true;
    on();
  });
  for (const other of result.querySelectorAll("[data-set]")) other.addEventListener("click", stop);
  if (!playing) return;
  if (button.disabled) stop();
  else {
    button.textContent = "Pause";
    setTimeout(() => playing && on(), 150);
  }
});

document.getElementById("controls").addEventListener("input", stop);
document.getElementById("cancel").addEventListener("click", stop);
document.addEventListener("visibilitychange", () => document.hidden && stop());

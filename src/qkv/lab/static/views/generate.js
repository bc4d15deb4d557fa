// Play writes one token after another, without the weights of a head, which take longer; an edit stops it.
import { announce, onResult, setState, stateNow } from "../lab.js";
import { player, wait } from "../moving.js";

const PAUSE = 150; // milliseconds from one token to the next
const writing = player(
  "generate-play",
  async (alive) => {
    while (alive() && !document.getElementById("generate-play").disabled) {
      await setState({ new: String(Number(stateNow().new) + 1), look: "no" });
      await wait(PAUSE);
    }
  },
  { moves: false },
);

onResult((result) => {
  const newest = result.querySelector(".generate-new:last-child");
  if (newest && !writing.on) announce(`Written: ${newest.textContent}`);
});
document.addEventListener("click", (event) => event.target.closest("[data-set], [data-preset], [data-reset], #cancel") && writing.stop());
document.getElementById("controls").addEventListener("input", writing.stop);

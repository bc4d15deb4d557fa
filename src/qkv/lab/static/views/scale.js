// A line of a derivation and the number that it explains light up together, whichever is pointed at or focused.
import { onResult } from "../lab.js";

onResult((result) => {
  const lines = [...result.querySelectorAll("li[data-explains]")];
  const numbers = [...result.querySelectorAll(".explained[id]")];
  const explains = (line, number) => line.dataset.explains.split(" ").includes(number.id);
  const light = (lit) => {
    for (const each of [...lines, ...numbers]) each.classList.toggle("lit", lit.includes(each));
  };
  const partners = (target) => {
    const line = target.closest("li[data-explains]");
    if (line) return [line, ...numbers.filter((number) => explains(line, number))];
    const number = target.closest(".explained[id]");
    return number ? [number, ...lines.filter((each) => explains(each, number))] : [];
  };
  // What has the focus stays lit when the pointer leaves.
  const rest = () => light(result.contains(document.activeElement) ? partners(document.activeElement) : []);
  const point = (event) => {
    const lit = partners(event.target);
    if (lit.length) light(lit);
    else rest();
  };
  for (const part of result.querySelectorAll("section")) {
    part.addEventListener("pointerover", point);
    part.addEventListener("pointerleave", rest);
    part.addEventListener("focusin", point);
    part.addEventListener("focusout", () => light([]));
    part.addEventListener("click", follow);
  }
});

// By hand, since the address behind the # is the frame's.
function follow(event) {
  const link = event.target.closest('a[href^="#"]');
  const place = link && document.getElementById(link.hash.slice(1));
  if (!place) return;
  event.preventDefault();
  const target = place.matches("a") ? place : place.querySelector("a");
  target.scrollIntoView({ block: "center" });
  target.focus({ preventScroll: true });
}

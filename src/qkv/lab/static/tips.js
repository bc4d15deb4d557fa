// What a mark of a chart says, at once and next to it: by pointer, by touch, and by arrow keys on a chart that has the focus.
const tip = document.createElement("div");
tip.id = "tip";
tip.setAttribute("aria-hidden", "true"); // what keys reach is said in the live region
tip.hidden = true;
document.body.append(tip);

const MARKS = "title";

function words(target) {
  for (let at = target; at instanceof SVGElement && at.tagName !== "svg"; at = at.parentNode) {
    const title = [...at.children].find((child) => child.tagName === MARKS);
    if (title) return title.textContent;
  }
  return "";
}

/** Shows a text at a point; none hides it. */
export function showTip(said, x, y) {
  tip.hidden = !said;
  if (!said) return;
  tip.textContent = said;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(Math.min(x + 12, innerWidth - width - 8), 4)}px`;
  tip.style.top = `${y + 16 + height > innerHeight ? y - height - 8 : y + 16}px`;
}

function pointed(event) {
  if (event.target instanceof SVGElement) showTip(words(event.target), event.clientX, event.clientY);
}

document.addEventListener("pointermove", pointed);
document.addEventListener("pointerdown", pointed);
document.addEventListener("pointerleave", () => (tip.hidden = true));
document.addEventListener("scroll", () => (tip.hidden = true), { passive: true, capture: true });
document.addEventListener("keydown", (event) => event.key === "Escape" && (tip.hidden = true));

const STEPS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -Infinity, End: Infinity };

function marksOf(chart) {
  return [...chart.querySelectorAll(`.qkv-series ${MARKS}, .qkv-level ${MARKS}`)].map((title) => title.parentNode);
}

/** Charts of `root` become stops of the Tab key, and arrow keys lead from mark to mark; `say` speaks them. */
export function walkCharts(root, say) {
  for (const chart of root.querySelectorAll("figure.chart svg[role=img]")) {
    if (chart.dataset.walked !== undefined || !marksOf(chart).length) continue;
    chart.dataset.walked = "";
    chart.setAttribute("tabindex", "0");
    let at = -1;
    chart.addEventListener("keydown", (event) => {
      const step = STEPS[event.key];
      if (step === undefined) return;
      event.preventDefault();
      const marks = marksOf(chart);
      at = Math.min(Math.max(at === -1 && step > 0 && step < Infinity ? 0 : at + step, 0), marks.length - 1);
      const box = marks[at].getBoundingClientRect();
      showTip(words(marks[at]), box.left + box.width / 2, box.top + box.height / 2);
      say(words(marks[at]));
    });
    chart.addEventListener("blur", () => (tip.hidden = true));
  }
}

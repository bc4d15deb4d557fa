// What a mark of a chart says, at once and near the pointer: the browser's own titles come late, and not at all by touch.
const tip = document.createElement("div");
tip.id = "tip";
tip.setAttribute("aria-hidden", "true"); // the titles are in the chart for those who listen
tip.hidden = true;
document.body.append(tip);

function words(target) {
  for (let at = target; at instanceof SVGElement && at.tagName !== "svg"; at = at.parentNode) {
    const title = [...at.children].find((child) => child.tagName === "title");
    if (title) return title.textContent;
  }
  return "";
}

document.addEventListener("pointermove", (event) => {
  const said = event.target instanceof SVGElement ? words(event.target) : "";
  tip.hidden = !said;
  if (!said) return;
  tip.textContent = said;
  const { width, height } = tip.getBoundingClientRect();
  const left = Math.min(event.clientX + 12, innerWidth - width - 8);
  const top = event.clientY + 16 + height > innerHeight ? event.clientY - height - 8 : event.clientY + 16;
  tip.style.left = `${Math.max(left, 4)}px`;
  tip.style.top = `${top}px`;
});
document.addEventListener("pointerleave", () => (tip.hidden = true));

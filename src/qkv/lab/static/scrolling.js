// What scrolls sideways must be reachable by keys; what does not scroll is no stop on the way.
const REGIONS = ".scroll, figure.chart, pre";

function settle(region) {
  const scrolls = region.scrollWidth > region.clientWidth + 1;
  if (scrolls && !region.hasAttribute("tabindex")) {
    region.tabIndex = 0;
    region.dataset.stop = "";
    if (!region.hasAttribute("aria-label") && region.tagName !== "FIGURE") {
      region.setAttribute("role", "group");
      region.setAttribute("aria-label", "Scrolls sideways");
    }
  } else if (!scrolls && "stop" in region.dataset) {
    region.removeAttribute("tabindex");
    delete region.dataset.stop;
  }
}

const watcher = new ResizeObserver((entries) => entries.forEach((entry) => settle(entry.target)));

export function watchScrolling(root) {
  watcher.disconnect();
  for (const region of root.querySelectorAll(REGIONS)) watcher.observe(region);
}

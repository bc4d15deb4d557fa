// On every page: simpler or exact words, what a word of the glossary means, and the bar of the tour.
import { showTip } from "./tips.js";

const page = document.documentElement;
const kept = (store, name) => {
  try {
    return store.getItem(name);
  } catch {
    return null; // storage may be forbidden
  }
};
const keep = (store, name, text) => {
  try {
    if (text === null) store.removeItem(name);
    else store.setItem(name, text);
  } catch {
    // It lasts for this page then.
  }
};

const wantsDark = matchMedia("(prefers-color-scheme: dark)");

/** A button that changes between two looks of the page, which the browser remembers; it names the other one. */
function toggle(name, now, other, then = () => {}) {
  const button = document.getElementById(name);
  const label = () => (button.textContent = other[now()]);
  button.hidden = false;
  label();
  wantsDark.addEventListener("change", label);
  button.addEventListener("click", () => {
    page.dataset[name] = Object.keys(other).find((each) => each !== now());
    keep(localStorage, name, page.dataset[name]);
    label();
    then();
  });
}
toggle("level", () => page.dataset.level, { simple: "Exact", exact: "Simpler" }, () => explainWords(document));
toggle("theme", () => page.dataset.theme ?? (wantsDark.matches ? "dark" : "light"), { light: "Dark", dark: "Light" });

const fetched = {};
const data = (name) => (fetched[name] ??= heldOrFetched(name));

async function heldOrFetched(name) {
  const held = document.getElementById(`data-${name}`); // in a file that was saved
  return held ? JSON.parse(held.textContent) : (await fetch(`/static/${name}.json`)).json();
}

const PLACES = ".lead, .soft, .narration, .start-says, figcaption, #result p, #result dt";
const WITHIN = "a, button, label, summary, dfn, math, code, svg, data, .formula, [data-why], .words, .asked, .solution";

/** In every text the first of each word that the glossary has becomes a stop that says what it means. */
export async function explainWords(part) {
  const words = Object.keys(await data("glossary")).sort((a, b) => b.length - a.length);
  const found = new RegExp(`(?<![\\p{L}-]|arrow )(${words.join("|")})(?=s?(?![\\p{L}-]))`, "iu");
  const seen = new Set([...document.querySelectorAll("dfn")].filter((each) => each.checkVisibility()).map((each) => each.dataset.term));
  for (const place of part.querySelectorAll(PLACES)) {
    const walker = document.createTreeWalker(place, NodeFilter.SHOW_TEXT);
    const texts = [];
    while (walker.nextNode()) {
      const around = walker.currentNode.parentElement;
      if (!around.closest(WITHIN) && around.checkVisibility()) texts.push(walker.currentNode);
    }
    for (let text of texts) {
      for (let match; (match = found.exec(text.data)); ) {
        const word = text.splitText(match.index);
        text = word.splitText(match[0].length);
        const term = words.find((each) => each.toLowerCase() === match[0].toLowerCase());
        if (seen.has(term)) continue;
        seen.add(term);
        const mark = document.createElement("dfn");
        mark.dataset.term = term;
        mark.tabIndex = 0;
        word.replaceWith(mark);
        mark.append(word);
      }
    }
  }
}

async function explain(event) {
  const mark = event.target.closest?.("dfn[data-term]");
  if (!mark) return event.type === "focusin" ? undefined : !(event.target instanceof SVGElement) && showTip("");
  const said = (await data("glossary"))[mark.dataset.term][page.dataset.level];
  const box = mark.getBoundingClientRect();
  showTip(said, box.left, box.bottom - 8);
  const live = document.getElementById("live");
  if (event.type === "focusin" && live) live.textContent = said;
}

document.addEventListener("pointerover", explain);
document.addEventListener("focusin", explain);
document.addEventListener("focusout", () => showTip(""));
explainWords(document);

// On a phone the views scroll sideways: the one that is open is in sight.
document.querySelector(".top [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });

const asked = /^#tour=(\d+)$/.exec(location.hash);
if (asked) keep(sessionStorage, "tour", asked[1]);

/** "3 of 8 · Next": the stop that was asked for last stays until the tour is ended. */
async function tour(place) {
  if (!place) return;
  const stops = await data("tour");
  const stop = stops[place - 1];
  if (!stop) return;
  const bar = document.createElement("aside");
  bar.id = "tour";
  bar.setAttribute("aria-label", "Tour");
  const link = (words, to, ...names) => {
    const made = document.createElement("a");
    made.textContent = words;
    made.href = `${stops[to - 1].at}#tour=${to}`;
    made.classList.add("button", ...names);
    return made;
  };
  const say = (name, words) => Object.assign(document.createElement("span"), { className: name, textContent: words });
  const end = Object.assign(document.createElement("button"), { type: "button", textContent: "End", className: "quiet" });
  end.addEventListener("click", () => {
    keep(sessionStorage, "tour", null);
    bar.remove();
    history.replaceState(null, "", location.pathname + location.search); // a reload would begin it again
  });
  bar.append(say("place", `${place} of ${stops.length} · ${stop.title}`), say("simpler", stop.simple), say("exact", stop.exact));
  if (place > 1) bar.append(link("Back", place - 1));
  if (place < stops.length) bar.append(link("Next", place + 1, "chosen"));
  bar.append(end);
  document.body.append(bar);
}

tour(Number(asked?.[1] ?? kept(sessionStorage, "tour")));
// A stop on the page that is shown already: its state is in the address, which only a new load reads.
window.addEventListener("hashchange", () => {
  if (location.hash.startsWith("#tour=")) location.reload();
});

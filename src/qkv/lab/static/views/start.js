// The first page: a word is dragged, or moved by arrow keys, and the weights follow; the library computes them when it rests.
import { announce, onResult, setState, stateNow } from "../lab.js";

const [WIDE, HIGH] = [2.9, 1.8]; // how far a word goes from the middle
const MOVES = { ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0], ArrowUp: [0, 0.1], ArrowDown: [0, -0.1] };
const form = document.getElementById("controls");
let hero = null;
let points = [];
let resting = 0;

/** Softmax of q·k/√2 over the words that the query sees, and the sum of their points. */
export function attend(rows, at, causal) {
  const scores = rows.map(([x, y]) => (rows[at][0] * x + rows[at][1] * y) / Math.SQRT2);
  const seen = scores.map((_, j) => !causal || j <= at);
  const most = Math.max(...scores.filter((_, j) => seen[j]));
  const powers = scores.map((score, j) => (seen[j] ? Math.exp(score - most) : 0));
  const all = powers.reduce((sum, power) => sum + power);
  const weights = powers.map((power) => power / all);
  return { scores, weights, seen, output: [0, 1].map((c) => rows.reduce((sum, row, j) => sum + weights[j] * row[c], 0)) };
}

function put(path, value) {
  const place = hero.querySelector(`[data-path="${path}"]`);
  place.value = String(value);
  place.textContent = value.toPrecision(4).replace("-", "−");
}

function draw() {
  const at = Number(hero.dataset.at);
  const { scores, weights, seen, output } = attend(points, at, hero.dataset.causal === "true");
  weights.forEach((weight, j) => {
    put(`scores.${j}`, scores[j]);
    put(`weights.${j}`, weight);
    hero.querySelector(`[data-share="${j}"]`).textContent = seen[j] ? `${Math.round(100 * weight)} %` : "masked";
    const line = hero.querySelector(`.start-line[data-j="${j}"]`);
    const ends = [...points[at], ...points[j]];
    ["x1", "y1", "x2", "y2"].forEach((name, n) => line.setAttribute(name, 100 * (n % 2 ? -ends[n] : ends[n])));
    for (const part of [line, hero.querySelector(`.start-arc[data-j="${j}"]`)]) part.setAttribute("stroke-width", 16 * weight);
    move(hero.querySelector(`#point-${j}`), points[j]);
  });
  output.forEach((value, c) => put(`output.${c}`, value));
  move(hero.querySelector("#sum"), output);
}

function move(part, [x, y]) {
  part.setAttribute("transform", `translate(${100 * x} ${-100 * y})`);
}

function place(j, x, y) {
  const within = (value, most) => Math.round(20 * Math.min(Math.max(value, -most), most)) / 20;
  points[j] = [within(x, WIDE), within(y, HIGH)];
  draw();
}

const settle = () => setState({ points: points.map((point) => point.join(",")).join(";") });

function drag(event) {
  const group = event.target.closest(".start-point");
  if (!group) return;
  const j = Number(group.dataset.j);
  const plane = group.ownerSVGElement;
  const inverse = plane.getScreenCTM().inverse();
  let moved = false;
  const follow = (now) => {
    moved ||= Math.hypot(now.clientX - event.clientX, now.clientY - event.clientY) > 3;
    const { x, y } = new DOMPoint(now.clientX, now.clientY).matrixTransform(inverse);
    if (moved) place(j, x / 100, -y / 100);
  };
  const leave = () => {
    plane.removeEventListener("pointermove", follow);
    if (moved) settle();
    else setState({ query: String(j + 1) }, { push: true });
  };
  event.preventDefault();
  group.focus({ preventScroll: true });
  plane.setPointerCapture(event.pointerId);
  plane.addEventListener("pointermove", follow);
  plane.addEventListener("pointerup", leave, { once: true });
  plane.addEventListener("pointercancel", leave, { once: true });
}

function keys(event) {
  const group = event.target.closest(".start-point");
  if (!group) return;
  const j = Number(group.dataset.j);
  if (event.key === "Enter" || event.key === " ") setState({ query: String(j + 1) }, { push: true });
  else if (MOVES[event.key]) {
    place(j, points[j][0] + MOVES[event.key][0], points[j][1] + MOVES[event.key][1]);
    clearTimeout(resting);
    resting = setTimeout(async () => {
      await settle();
      announce(hero.querySelector("figcaption").textContent);
    }, 120);
  } else return;
  event.preventDefault();
}

// Before the frame reads the form: every word has a point, and the query is one of them.
form.addEventListener(
  "input",
  (event) => {
    if (event.target.name !== "words") return;
    const count = event.target.value.trim().split(/\s+/).length;
    if (count < 2 || count > 8) return;
    const rows = stateNow().points.split(";");
    while (rows.length < count) rows.push(`${((rows.length * 1.7) % 5 - 2.5).toFixed(1)},${((rows.length * 1.1) % 3 - 1.5).toFixed(1)}`);
    event.stopPropagation();
    setState({ points: rows.slice(0, count).join(";"), query: String(Math.min(Number(stateNow().query), count)) });
  },
  { capture: true },
);

onResult((result) => {
  hero = result.querySelector("#hero");
  if (!hero) return;
  points = stateNow().points.split(";").map((row) => row.split(",").map((entry) => {
    const [above, below = "1"] = entry.split("/");
    return Number(above) / Number(below);
  }));
  hero.querySelector("#plane").addEventListener("pointerdown", drag);
  hero.querySelector("#plane").addEventListener("keydown", keys);
});

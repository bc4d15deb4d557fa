// In place of lab.js in a view that was saved: the result stays, and what asks for no other works.
import { walkCharts } from "./tips.js";
import { watchScrolling } from "./scrolling.js";
import { explainWords } from "./guide.js";

const result = document.getElementById("result");
const state = JSON.parse(document.getElementById("data-state").textContent);

export const onResult = (listener) => listener(result);
export const onLeave = () => {};
export const stateNow = () => state;
export const noteState = (texts) => Object.assign(state, texts);
export const setState = noteState;
export const announce = (text) => (document.getElementById("live").textContent = text);

result.classList.add("view");
watchScrolling(document);
walkCharts(result, announce);
explainWords(result);

// Links between a claim and its verdict move the focus.
import { onResult } from "../lab.js";

// The address holds the state: it stays as it is.
onResult((result) => {
  for (const link of result.querySelectorAll('a[href^="#"]')) {
    link.addEventListener("click", (event) => {
      const target = document.getElementById(link.hash.slice(1));
      if (!target) return;
      event.preventDefault();
      target.focus({ preventScroll: true });
      target.scrollIntoView({ block: "center" });
    });
  }
});

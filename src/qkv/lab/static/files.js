// Files that are opened or dropped: their text goes into the field that takes it.
const MARKS = [
  [[0xff, 0xfe], "utf-16le"],
  [[0xfe, 0xff], "utf-16be"],
];

/** The text of a file, or null where it is none. */
async function textOf(file) {
  const bytes = new Uint8Array(await file.arrayBuffer());
  const mark = MARKS.find(([signs]) => signs.every((sign, n) => bytes[n] === sign));
  try {
    const text = new TextDecoder(mark?.[1] ?? "utf-8", { fatal: true }).decode(bytes);
    return text.includes("\0") ? null : text;
  } catch {
    return null;
  }
}

/** `take(texts)` is given the fields to set, `refuse(name, words)` what is wrong with a file. */
export function openFiles(form, take, refuse) {
  const put = async (input, file) => {
    const { into: name, longest } = input.dataset;
    if (file.size > 4 * Number(longest)) {
      refuse(name, `${file.name}: got ${file.size.toLocaleString("en")} bytes, wanted at most ${Number(longest).toLocaleString("en")} characters.`);
      return;
    }
    const text = await textOf(file);
    if (text === null) {
      refuse(name, `${file.name}: got a file that is no text, wanted one of ${input.accept.replaceAll(",", ", ")}.`);
      return;
    }
    // The field may be hidden until another says that it is wanted.
    const needs = input.closest("[data-needs]");
    take({ ...(needs ? { [needs.dataset.needs]: needs.dataset.with.split(" ")[0] } : {}), [name]: text });
  };
  const inputs = [...form.querySelectorAll("input[type=file]")];
  for (const input of inputs) {
    input.addEventListener("change", async () => {
      if (input.files[0]) await put(input, input.files[0]);
      input.value = ""; // so that the same file can be opened again
    });
  }
  // Anywhere on the page: a file that misses its field must not replace the page.
  const hasFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
  document.addEventListener("dragover", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    event.dataTransfer.dropEffect = inputs.length ? "copy" : "none";
    for (const input of inputs) form.elements.namedItem(input.dataset.into).classList.add("over");
  });
  const leave = () => {
    for (const input of inputs) form.elements.namedItem(input.dataset.into).classList.remove("over");
  };
  document.addEventListener("dragleave", (event) => event.relatedTarget === null && leave());
  document.addEventListener("drop", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    leave();
    // The field that it was dropped on, or the first that takes files.
    const input = inputs.find((each) => each.closest("[data-field]").contains(event.target)) ?? inputs[0];
    if (input && event.dataTransfer.files[0]) put(input, event.dataTransfer.files[0]);
  });
}

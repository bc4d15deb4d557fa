"""The notebooks of examples/notebooks: run by `python docs/notebooks.py`, and pages of the site (a hook of mkdocs).

Notebooks are stored without outputs. Executed ones are written to build/notebooks; a page shows the outputs if its
notebook has not changed since. Nothing is loaded from a network.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
EXECUTED = ROOT / "build" / "notebooks"
TIMEOUT = 110  # seconds for a cell
_STYLE = """
.nb-output { overflow-x: auto; margin: -.5em 0 1.5em; }
.nb-output pre { margin: 0; padding: .3em 0; background: none; font-size: .85em; line-height: 1.35; }
.nb-output math { font-size: 1.1em; }
"""


def executed(path: Path) -> Any:
    """The notebook with its outputs; an error in a cell is raised."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    with TemporaryDirectory() as folder:  # for the kernel's profile, which it would write to the home folder
        environment = {**os.environ, "IPYTHONDIR": folder, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "2"}
        client = NotebookClient(notebook, timeout=TIMEOUT, kernel_name="python3", store_widget_state=False)
        manager = client.create_kernel_manager()
        manager.transport, manager.ip = "ipc", f"{folder}/kernel"  # files, no ports
        client.execute(env=environment, cwd=folder)
    return notebook


def main() -> None:
    import nbformat

    EXECUTED.mkdir(parents=True, exist_ok=True)
    for path in NOTEBOOKS:
        began = time.monotonic()
        nbformat.write(executed(path), EXECUTED / path.name)
        print(f"build/notebooks/{path.name}: {time.monotonic() - began:.1f} s", file=sys.stderr)


def current(path: Path) -> dict[str, Any]:
    """The executed notebook if it has the same cells, or the stored one."""
    stored = json.loads(path.read_text(encoding="utf-8"))
    other = EXECUTED / path.name
    if other.exists():
        with_outputs = json.loads(other.read_text(encoding="utf-8"))
        if _sources(with_outputs) == _sources(stored):
            return with_outputs
    return stored


def _sources(notebook: dict[str, Any]) -> list[str]:
    return ["".join(cell["source"]) for cell in notebook["cells"]]


def markdown(notebook: dict[str, Any], name: str) -> str:
    """A page: text, code, and a line in the place of each output, which Markdown must not touch."""
    parts = []
    for place, cell in enumerate(notebook["cells"]):
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        if cell.get("outputs"):
            parts.append(f"NOTEBOOK-OUTPUT-{place}")
        if place == 0:
            parts.append(f"*This page is `examples/notebooks/{name}.ipynb`, as it ran when the site was built.*")
    return "\n\n".join(parts) + "\n"


def output_html(outputs: list[dict[str, Any]]) -> str:
    """The outputs of a cell as HTML."""
    return '<div class="nb-output">' + "\n".join(map(_output, outputs)) + "</div>"


def _output(output: dict[str, Any]) -> str:
    if output["output_type"] == "stream":
        return f"<pre>{escape(''.join(output['text']))}</pre>"
    data = {kind: "".join(text) for kind, text in output["data"].items() if isinstance(text, str | list)}
    for kind in ("text/html", "image/svg+xml"):
        if kind in data:
            return data[kind]
    return f"<pre>{escape(data['text/plain'])}</pre>"


def on_files(files: Any, config: Any) -> Any:
    """Add a page for each notebook."""
    from mkdocs.structure.files import File

    for path in NOTEBOOKS:
        text = markdown(current(path), path.stem)
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=text))
    return files


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Put the outputs into the page."""
    path = ROOT / "examples" / "notebooks" / f"{Path(page.file.src_uri).stem}.ipynb"
    if not page.file.src_uri.startswith("notebooks/"):
        return html
    cells = current(path)["cells"]
    filled = re.sub(r"<p>NOTEBOOK-OUTPUT-(\d+)</p>", lambda found: output_html(cells[int(found[1])]["outputs"]), html)
    return f"<style>{_STYLE}</style>{filled}"


if __name__ == "__main__":
    main()

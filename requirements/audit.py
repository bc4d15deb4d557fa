"""Looks up every locked version in the database of known vulnerabilities; one that is found fails.

If the database cannot be reached, it prints a line and succeeds.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

HERE = Path(__file__).parent
DATABASE = "https://api.osv.dev/v1/query"
PATIENCE = 3.0  # seconds


def is_there() -> bool:
    """Whether the database answers a question as it should."""
    query = json.dumps({"package": {"name": "jinja2", "ecosystem": "PyPI"}, "version": "2.4"}).encode()
    request = urllib.request.Request(DATABASE, query, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return bool(json.load(answer).get("vulns"))  # this old version is known to have some
    except (OSError, ValueError, urllib.error.URLError):
        return False


def main() -> None:
    if not is_there():
        print("pip-audit: the database cannot be reached, not audited")
        return
    subprocess.run(["make", "--no-print-directory", "build/tools/.done"], cwd=HERE.parent, check=True)
    lists = [word for name in ("build", "run", "lab", "dev", "bench") for word in ("-r", str(HERE / f"{name}.txt"))]
    words = ["--disable-pip", "--require-hashes", "--vulnerability-service", "osv", "--progress-spinner", "off"]
    sys.exit(subprocess.run([HERE.parent / "build/tools/bin/pip-audit", *words, *lists]).returncode)


if __name__ == "__main__":
    main()

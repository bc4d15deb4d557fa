"""Texts use the plain English of the field: no banned words, and no long lines in documents."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("src/qkv", "native", "tests", "benchmarks", "campaigns", "docs", "examples", "requirements")
SUFFIXES = {".py", ".pyi", ".cpp", ".h", ".md", ".toml", ".ipynb"}
# Patterns, one a line; in a data file, because this test searches its own text too.
BANNED = (ROOT / "tests" / "banned_words.txt").read_text(encoding="utf-8").splitlines()
ANY = re.compile(rf"(?<![A-Za-z])(?:{'|'.join(BANNED)})(?![A-Za-z])", re.IGNORECASE)
MAX_COLUMNS = 100


def texts() -> list[Path]:
    found = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*")) if path.suffix in SUFFIXES]
    found += [ROOT / "Makefile", ROOT / "CMakeLists.txt", ROOT / "pyproject.toml", *sorted(ROOT.glob("*.md"))]
    return found


def test_no_banned_word() -> None:
    found = []
    for path in texts():
        text = path.read_text(encoding="utf-8")
        for match in ANY.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            found.append(f"{path.relative_to(ROOT)}:{line}: {match[0]}: {text.splitlines()[line - 1].strip()}")
    assert not found, "\n".join(found)


@pytest.mark.parametrize("word", BANNED)
def test_the_search_finds_a_banned_word(word: str) -> None:
    plain = re.sub(r"\(\?:(\w+).*?\)|\?", r"\1", word)
    assert ANY.search(f"{plain.upper()} = 3")
    assert not ANY.search(f"a mush{plain}")


@pytest.mark.parametrize(
    "page", [*sorted((ROOT / "docs").glob("*.md")), *sorted(ROOT.glob("*.md"))], ids=lambda p: p.name
)
def test_lines_of_documents_fit(page: Path) -> None:
    """Tables, links and code blocks cannot be wrapped; everything else is."""
    inside_code, long = False, []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("```"):
            inside_code = not inside_code
        elif not inside_code and len(line) > MAX_COLUMNS and not line.startswith(("|", "    ", "[", "!")):
            long.append(f"{page.name}:{number}: {len(line)} columns")
    assert not long, "\n".join(long)

"""The parts of a question as it stands in an assignment: what is said before them, and each with its letter."""

from __future__ import annotations

import re
from dataclasses import dataclass

LONGEST = 60_000  # characters that are looked at

_LABEL = re.compile(
    r"^[ \t>*#-]*\(?\s*([a-h])\s*\)?(?:\s*\(?\s*(i{1,3}|iv|v)\s*\)|\.\s*(i{1,3}|iv|v))?\s*\)[*:.]*[ \t]+"
    r"|^[ \t>*#-]*\(?(i{1,3}|iv|v)[).][*:.]*[ \t]+|^[ \t>*#-]*([a-h])\.[*:.]*[ \t]+",
    re.MULTILINE,
)
_ROMANS = ("i", "ii", "iii", "iv", "v")


@dataclass(frozen=True)
class Asked:
    """One part: `name` as the bank has it ("b(i)"), `text` of its own, and `stem`, what its letter says before (i)."""

    name: str
    text: str
    stem: str = ""

    @property
    def whole(self) -> str:
        return f"{self.stem} {self.text}"


def lettered(text: str) -> tuple[str, list[Asked]]:
    """What stands before the first part, and the parts; those that only introduce (i), (ii) … are their stems.

    >>> before, parts = lettered("Given x.\\n(a) Find these:\\n (i) one\\n (ii) two\\n(b) Prove it.")
    >>> before, [(part.name, part.text, part.stem) for part in parts][1:]
    ('Given x.', [('a(ii)', 'two', 'Find these:'), ('b', 'Prove it.', '')])
    """
    text = unescaped(text[:LONGEST])
    found = list(_LABEL.finditer(text))
    # What has a roman number before any letter is a list that the parts are about.
    first_letter = next((place for place, label in enumerate(found) if label[1] or label[5]), 0)
    found = found[first_letter:]
    before = text[: found[0].start()].strip() if found else text.strip()
    parts: list[Asked] = []
    letter, stem = "", ""
    for place, label in enumerate(found):
        end = found[place + 1].start() if place + 1 < len(found) else len(text)
        said = re.split(r"\n[ \t>*#]*Solution\b", text[label.end() : end])[0].strip()
        own = label[1] or label[5]
        sub = label[2] or label[3] or label[4]
        if own and not sub:
            letter, stem = own, said
            parts.append(Asked(own, said))
        elif own:
            letter, stem = own, ""
            parts.append(Asked(f"{own}({sub})", said))
        else:
            if parts and parts[-1].name == letter:
                parts.pop()
            parts.append(Asked(f"{letter}({sub})", said, stem))
    first = {part.name: part for part in reversed(parts)}
    return before, [each for part in parts if first[part.name] is part for each in _divided(part)]


def _divided(part: Asked) -> list[Asked]:
    """A part that lists (i), (ii), … within its line, as the parts that they are; else its bullets."""
    stem, *pieces = re.split(r"(?:(?<=\s)|^)\((i{1,3}|iv|v)\)\s*", part.text)
    signs, said = pieces[::2], [piece.strip() for piece in pieces[1::2]]
    rising = signs == list(_ROMANS[: len(signs)]) and len(signs) > 1
    if "(" in part.name or not rising or any(len(piece.split()) < 2 for piece in said):
        return _bulleted(part)
    stem = f"{part.stem} {stem}".strip()
    return [Asked(f"{part.name}({sign})", piece, stem) for sign, piece in zip(signs, said, strict=True)]


def _bulleted(part: Asked) -> list[Asked]:
    """A part that lists scenarios as bullets, as the parts (i), (ii) … that they are."""
    stem, *bullets = re.split(r"^\s*[-*•]\s+", part.text, flags=re.MULTILINE)
    if len(bullets) < 2 or not re.search(r"following|each of|scenarios|cases", stem):
        return [part]
    return [Asked(f"{part.name}({sign})", bullet.strip(), stem) for sign, bullet in zip(_ROMANS, bullets, strict=False)]


def unescaped(text: str) -> str:
    """Markdown's escapes of signs that need none here; LaTeX's brackets stay."""
    return re.sub(r"\\([:#.!-])", r"\1", re.sub(r"\\\(([a-h]|[ivx]+)\\\)", r"(\1)", text))


def about(before: str, name: str) -> str:
    """What is said before the parts for one of them: "For part (b): …"."""
    letter = re.escape(name[:1])
    found = re.findall(rf"^.*\bpart \(?{letter}\)?.*$|^\({letter}\) .*$", before, re.MULTILINE | re.IGNORECASE)
    return " ".join(found)

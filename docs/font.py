"""Build the lab's mathematics font from STIX Two Math, which the PyPI package ziamath contains.

    python docs/font.py                      where ziamath, fonttools and brotli are installed
    python docs/font.py ziamath-0.13-py3-none-any.whl

Nothing is downloaded. A list of the font's characters is written next to it, so that tests need not open the font.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

from fontTools.subset import Options, Subsetter
from fontTools.ttLib import TTFont

FONTS = Path(__file__).parents[1] / "src" / "qkv" / "lab" / "static" / "fonts"
SOURCE = "ziamath/fonts/STIXTwoMath-Regular.ttf"
FAMILY = "qkv Math"  # the OFL requires another name for a changed font

# Characters in hexadecimal, by kind.
RANGES = {
    "words": "20-7E A0-FF 131 237 302-304 307 308 2002-200A 2013 2014 2018 2019 201C 201D 2026",
    "Greek": "391-3A1 3A3-3A9 3B1-3C9 3D1 3D5 3D6 3F0 3F1 3F5",
    "primes and scripts": "2032-2034 2057 2070 2071 2074-208E",
    "invisible times and function application": "2061-2064",
    "brackets": "2016 2308-230B 239B-23B1 23DE 23DF 27E8 27E9",
    "arrows": "2190-2194 21A6 21D0-21D4 27F6",
    "operators": "2200 2202 2203 2205 2207-2209 220B 220F 2211-2213 2215 2217 2218 221A 221D-2220 2223 2225 2227-222B"
    " 2234 223C 2243 2245 2248 2254 2260 2261 2264 2265 226A 226B 227A 227B 2282 2283 2286 2287 2295-2297 2299 22A4"
    " 22A5 22C5 22EE 22EF 22F1",
    "double-struck and script letters": "2102 210B 210F 2110 2112 2113 2115 2119-211B 211D 2124 2131 1D49C-1D4B5"
    " 1D538-1D551 1D7D9",
    "italic letters, as <mi> shows a single one": "210E 1D434-1D467 1D6A4 1D6A5 1D6E2-1D71B",
    "bold letters and digits": "1D400-1D433 1D6A8-1D6E1 1D7CE-1D7D7",
}


def characters() -> Iterator[int]:
    for part in " ".join(RANGES.values()).split():
        first, _, last = part.partition("-")
        yield from range(int(first, 16), int(last or first, 16) + 1)


def source(given: str | None) -> bytes:
    """The whole font, from the given wheel or file, or from the installed package."""
    if given is None:
        found = importlib.util.find_spec("ziamath")
        if found is None or found.origin is None:
            sys.exit("ziamath is not installed: give the path of its wheel")
        return (Path(found.origin).parents[1] / SOURCE).read_bytes()
    if given.endswith(".whl"):
        with zipfile.ZipFile(given) as wheel:
            return wheel.read(SOURCE)
    return Path(given).read_bytes()


def subset(whole: bytes) -> TTFont:
    """The part that mathematics in a browser needs: the characters, their larger variants, and their script forms."""
    font = TTFont(io.BytesIO(whole), recalcTimestamp=False)
    options = Options()
    options.layout_features = ["ccmp", "dtls", "flac", "ssty", "mark", "mkmk", "kern"]
    options.hinting = False
    options.glyph_names = False
    options.name_IDs = [0, 1, 2, 3, 4, 5, 6, 7, 13, 14]
    options.drop_tables += ["DSIG"]
    options.notdef_outline = True
    worker = Subsetter(options)
    worker.populate(unicodes=characters())
    worker.subset(font)
    _rename(font)
    return font


def _rename(font: TTFont) -> None:
    names = {1: FAMILY, 3: f"{FAMILY}; subset of STIX Two Math 2.11 b159", 4: f"{FAMILY} Regular", 6: "qkvMath-Regular"}
    for record in font["name"].names:
        if record.nameID in names:
            record.string = names[record.nameID]


def main() -> None:
    font = subset(source(sys.argv[1] if len(sys.argv) > 1 else None))
    font.flavor = "woff2"
    written = io.BytesIO()
    font.save(written, reorderTables=False)
    FONTS.mkdir(parents=True, exist_ok=True)
    (FONTS / "qkv-math.woff2").write_bytes(written.getvalue())
    growing = _growing(font)
    description = {
        "family": FAMILY,
        "sha256": hashlib.sha256(written.getvalue()).hexdigest(),
        "tables": " ".join(sorted(set(font.keys()) - {"GlyphOrder"})),
        "grows": "".join(chr(code) for code, glyph in sorted(font.getBestCmap().items()) if glyph in growing),
        "characters": "".join(chr(code) for code in sorted(font.getBestCmap())),
    }
    (FONTS / "qkv-math.json").write_text(json.dumps(description, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    print(f"{FONTS / 'qkv-math.woff2'}: {len(written.getvalue()):,} bytes, {len(description['characters'])} characters")


def _growing(font: TTFont) -> set[str]:
    """The glyphs that have larger variants or are assembled from parts."""
    variants = font["MATH"].table.MathVariants
    covered = [each.glyphs for each in (variants.VertGlyphCoverage, variants.HorizGlyphCoverage) if each]
    return {glyph for glyphs in covered for glyph in glyphs}


if __name__ == "__main__":
    main()

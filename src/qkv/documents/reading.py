"""Read a file or a text as a document, by its name or by what it begins with."""

from __future__ import annotations

from pathlib import Path

from .document import Document


def read_document(source: str | Path | bytes, name: str = "") -> Document:
    """Read a file, bytes or a text.

    Args:
        source: A path (a `Path`, or a `str` that names a file), bytes, or with `name` a text.
        name: The file's name where bytes or a text are given; its suffix says the format.

    Returns:
        The document. `document.text` is clean.

    Raises:
        OptionError: The file is missing, too large, binary, or not what its suffix says.
        MissingExtra: A docx or a PDF file, and the package that reads it is not installed.
    """
    raise NotImplementedError

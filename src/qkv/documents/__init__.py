"""Files into clean text with spans: Markdown, plain text, LaTeX, notebooks, docx and PDF. Nothing is executed."""

from __future__ import annotations

from .document import Block, Document
from .reading import read_document

__all__ = ["Block", "Document", "read_document"]

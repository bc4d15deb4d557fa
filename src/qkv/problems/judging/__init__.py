"""Kinds of answers: what is right, and how another text is held to it."""

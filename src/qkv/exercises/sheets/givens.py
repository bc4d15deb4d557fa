"""Find what a text gives: matrices, sizes, machine figures, laws, listings, definitions."""

from __future__ import annotations

from ..record import Definition, Given


def find_givens(text: str, context: str = "") -> list[Given]:
    """Everything that a text gives, each with its role and its span in `text`, in order.

    What only `context` gives comes after it, with the span None; where both give one symbol, the text's value stands.
    A symbol whose role the words next to it do not settle has the role "other". Laws are written "N(mu, Sigma)",
    "U(a, b)", or "iid(mean, variance)" for independent components of any distribution. A vector is one list of
    numbers, a matrix a list of rows; numbered vectors x_1, …, x_n come as one matrix with a row for each (symbol "x").
    An identity of unknown size has the value "I". Values are ints, floats as printed, or texts ("1/3", "sqrt(2)").
    """
    raise NotImplementedError


def find_definitions(text: str) -> list[Definition]:
    """The equations of a text that define a symbol by others, in the notation of `qkv.maths`."""
    raise NotImplementedError

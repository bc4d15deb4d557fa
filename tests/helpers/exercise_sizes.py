"""One question on sizes or machines, asked and checked."""

from __future__ import annotations

from typing import Any

from qkv.exercises import Answer, Asked, Convention, Definition, Exercise, Given, Structure
from qkv.exercises.solving import answer
from qkv.maths import compare


def solved(quantity: str, of: str = "", *, structure: Any = None, conventions: Any = None, rule: str = "",
           unit: str = "", terms: tuple[str, ...] = (), **givens: Any) -> Answer:  # fmt: skip
    """The answer to one question; a text that is a name is a symbol, whatever the role."""
    made = []
    for role, value in givens.items():
        named = isinstance(value, str) and value.isidentifier() and role not in ("model", "machine", "dtype")
        if isinstance(value, tuple):
            made.append(Given(role=role, symbol=value[0], value=value[1]))  # pyright: ignore[reportArgumentType]
        else:
            made.append(Given(role=role, symbol=value) if named else Given(role=role, value=value))  # pyright: ignore
    asked = Asked(quantity=quantity, object=of, unit=unit, in_terms_of=terms)
    exercise = Exercise(
        givens=tuple(made),
        structure=Structure(**(structure or {})),
        conventions={name: Convention(value=value) for name, value in (conventions or {}).items()},
        definitions=(Definition(text=rule),) if rule else (),
        asked=(asked,),
    )
    found = answer(exercise, asked)
    assert compare(found.text, found.text, found.symbols).kind == "equal" or found.form == "words"
    for other in found.also:
        assert compare(other.text, other.text, other.symbols or {}).kind == "equal"
    assert found.derivation.holds
    return found


def also(found: Answer, word: str) -> Any:
    return next(each.value for each in found.also if word in each.convention)

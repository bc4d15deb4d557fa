"""Constrained decoding: what a model may write is a JSON schema, a regular expression or a grammar, with llguidance."""

from __future__ import annotations

import json as json_module
from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from torch import Tensor

from ..errors import MissingExtra, OptionError, OptionTypeError, complaint
from .tokenizer import TextTokenizer

# JSON stands on one line, as json.dumps writes it: a weak model would fill its answer with spaces.
ONE_LINE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


class Constraint:
    """What an answer has to be; exactly one of the arguments.

    Args:
        schema: A JSON schema, as a mapping or as text. The answer is JSON on one line.
        regex: A regular expression of the whole answer, without look-around and back-references.
        grammar: A context-free grammar in Lark's notation, with the rule `start`.
        json: Any JSON object.

    Raises:
        OptionError: It cannot be read, nothing fulfils it, or it asks for what llguidance does not know.
        MissingExtra: llguidance is not installed.

    >>> Constraint(regex="(yes|no)")
    Constraint(regex='(yes|no)')
    >>> Constraint(schema={"type": "integer", "minimum": 5, "maximum": 3})
    Traceback (most recent call last):
    qkv.errors.OptionError: schema: got Unsatisfiable schema: minimum (5) is greater than maximum (3), wanted ...
    """

    def __init__(
        self,
        *,
        schema: Mapping[str, Any] | str | None = None,
        regex: str | None = None,
        grammar: str | None = None,
        json: bool = False,
    ) -> None:
        given = {"schema": schema, "regex": regex, "grammar": grammar, "json": json or None}
        given = {name: value for name, value in given.items() if value is not None}
        if len(given) != 1:
            said = " and ".join(given) or "none"
            raise OptionError(complaint("constraint", said, "exactly one of schema, regex, grammar and json"))
        ((self.kind, self.value),) = given.items()
        if not isinstance(self.value, (str, Mapping) if schema is not None else (bool, str)):
            wanted = "a mapping or JSON" if schema is not None else "text"
            raise OptionTypeError(complaint(self.kind, type(self.value).__name__, wanted))
        matcher = _library().LLMatcher
        if self.kind == "regex":
            self._grammar = matcher.grammar_from_regex(self.value)
        elif self.kind == "grammar":
            self._grammar = matcher.grammar_from_lark(self.value)
        else:
            wanted = {"type": "object"} if self.kind == "json" else self.value
            try:
                wanted = json_module.loads(wanted) if isinstance(wanted, str) else wanted
                self._grammar = matcher.grammar_from_json_schema(json_module.dumps(wanted), overrides=ONE_LINE)
            except (TypeError, ValueError, RecursionError) as error:
                raise self._refused(str(error) or "JSON that is nested too deeply") from error
        if why := matcher.validate_grammar(self._grammar):
            raise self._refused(why)

    def __repr__(self) -> str:
        return f"Constraint({self.kind}={self.value!r})"

    def start(self, tokenizer: TextTokenizer, vocabulary: int, stop_tokens: frozenset[int]) -> ConstraintState:
        """The constraint at the beginning of an answer.

        Args:
            tokenizer: The tokenizer of the model.
            vocabulary: How many tokens the model has.
            stop_tokens: The tokens that end an answer; they are allowed where it may end.
        """
        table = _table(tokenizer, vocabulary, stop_tokens)
        return ConstraintState(self, _library().LLMatcher(table, self._grammar, log_level=0))

    def _refused(self, why: str) -> OptionError:
        why = " ".join(why.removeprefix("WARNING: ").split())[:300]
        return OptionError(complaint(self.kind, why, "one that an answer can fulfil and llguidance knows"))


class ConstraintState:
    """A constraint after the tokens of an answer so far; see `Constraint.start`."""

    def __init__(self, constraint: Constraint, matcher: Any) -> None:
        self._constraint, self._matcher = constraint, matcher
        self._check()

    def mask(self, log_probs: Tensor) -> None:
        """Set what must not come next to −inf, in place.

        Args:
            log_probs: (vocabulary,).

        Raises:
            OptionError: Nothing may come next.
        """
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        allowed = np.unpackbits(bits, count=len(log_probs), bitorder="little").view(np.bool_)
        if not allowed.any():
            raise self._constraint._refused("no token of the model that may come next")
        np.copyto(log_probs.numpy(), -np.inf, where=~allowed)

    def accept(self, token: int) -> None:
        """Take the next token.

        Raises:
            OptionError: It must not come next.
        """
        self._matcher.consume_token(token)
        self._check()

    def try_accept(self, token: int) -> bool:
        """Take the next token if it may come, without the mask of all tokens."""
        return self._matcher.try_consume_tokens([token]) == 1

    @property
    def finished(self) -> bool:
        """Whether the answer is complete and nothing can be added to it."""
        return self._matcher.is_stopped()

    def _check(self) -> None:
        if self._matcher.is_error():
            why = self._matcher.get_error().partition("<state>")[0].strip()
            raise self._constraint._refused(why.replace("NoExtensionBias", "no token of the model that may come next"))


def _library() -> Any:
    try:
        import llguidance
    except ModuleNotFoundError as error:
        raise MissingExtra("constrained decoding", "llguidance", "local") from error
    return llguidance


class _Table:
    """The tokens of a model, as llguidance takes them."""

    def __init__(self, tokenizer: TextTokenizer, vocabulary: int, stop_tokens: frozenset[int]) -> None:
        self.tokenizer = tokenizer
        self.tokens, control = tokenizer.token_bytes(vocabulary)
        # A model without a stop token gets one behind its vocabulary: no mask that is used reaches there.
        ends = sorted(token for token in stop_tokens if 0 <= token < vocabulary)
        self.tokens += [] if ends else [b"<end>"]
        self.eos_tokens = ends or [vocabulary]
        self.eos_token_id, self.bos_token_id = self.eos_tokens[0], None
        self.special_token_ids = sorted({*control, *self.eos_tokens})

    def __call__(self, text: bytes | str) -> list[int]:
        text = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        return self.tokenizer.encode(text, bare=True)

    @cached_property
    def native(self) -> Any:
        library = _library()
        return library.LLTokenizer(library.TokenizerWrapper(self), eos_token=self.eos_tokens)


@lru_cache(maxsize=4)  # a table of 150,000 tokens takes a second
def _table(tokenizer: TextTokenizer, vocabulary: int, stop_tokens: frozenset[int]) -> Any:
    return _Table(tokenizer, vocabulary, stop_tokens).native

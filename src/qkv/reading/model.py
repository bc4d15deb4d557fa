"""The model reader: a language model lists the answers of each turn, with quotes, under the prompts of this package.

It sees the questions and the chat, never an answer, and it does not judge. A claim counts if its quote stands in the
turn, supports it, and all readings of the turn agree. Replies are cached by content, so that a run that was interrupted
goes on where it ended.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from pydantic import BaseModel, ValidationError

from ..cost.machine import cache_folder
from ..errors import MissingExtra
from ..exercises.findings import Finding
from ..exercises.record import Exercise, plain_label
from .chat import Chat, Turn
from .claims import Anchor, AnswerClaim, Stance
from .explicit import ExplicitReader
from .replay import fingerprint
from .support import Admission

try:
    from anyio.from_thread import start_blocking_portal
    from inspect_ai import model as api
    from inspect_ai.util import JSONSchema, json_schema
except ModuleNotFoundError as error:
    raise MissingExtra("qkv.reading.model", "inspect-ai", "grading") from error

BEFORE, LONGEST = 4, 1_500  # turns that are shown before the one to read, and characters of each


class Row(BaseModel):
    """A claim as a model returns it."""

    question: str
    part: str
    quote: str
    claim: str | None
    stance: Stance
    anchor: Anchor


class Rows(BaseModel):
    """The reply of a model."""

    claims: list[Row]


_Reply: TypeAlias = "tuple[list[Row], bool]"  # the claims, and whether the reply is whole


class Request(NamedTuple):
    """A turn to read: `system` and `prompts`, one for each reading, are what the reader is given."""

    turn: Turn
    system: str
    prompts: tuple[str, ...]


def requests(chat: Chat, exercises: Mapping[str, Exercise], readings: int = 1) -> Iterator[Request]:
    """What a reader of a chat is given, turn by turn; a person can read by it too.

    Args:
        chat: The chat.
        exercises: The questions by their labels.
        readings: How many prompts are made of each turn; every second one lists the questions from the last.
    """
    folder = files("qkv.reading").joinpath("prompts")
    system, template = (folder.joinpath(name).read_text("utf-8") for name in ("read.md", "turn.md"))
    asked = [_question(label, each) for label, each in exercises.items()]
    orders = ["\n\n".join(asked[:: -1 if at % 2 else 1]) for at in range(readings)]
    # No text holds its own hash: what is quoted cannot end the quotation.
    mark = fingerprint(chat)[:12]
    spoken = [turn for turn in chat.turns if turn.speaker != "note"]
    for at, turn in enumerate(spoken):
        last = spoken[max(0, at - BEFORE) : at]
        said = "\n\n".join(f"{each.speaker}:\n<<< {mark}\n{each.text[:LONGEST]}\n{mark} >>>" for each in last)
        fill = {"before": said, "mark": mark, "turn": turn.index + 1, "text": turn.text}
        if turn.speaker != "student" and exercises:
            yield Request(turn, system, tuple(template.format(questions=order, **fill) for order in orders))


def _question(label: str, exercise: Exercise) -> str:
    lines = [f'## Question "{label}"', exercise.text]
    for place in Admission({label: exercise}).places.values():
        asked, record = place.asked, getattr(exercise, "records", {}).get(plain_label(place.part), exercise)
        names = f", in terms of {', '.join(asked.in_terms_of)}" if asked.in_terms_of else ""
        lines.append(f'- part "{place.part}" (form: {place.kind or "formula"}{names}): {asked.text or record.text}')
        lines += [f"  - option ({option.label}) {option.text}" for option in asked.options]
    return "\n".join(lines)


class ModelReader:
    """A language model as a reader.

    A model that runs here (`qkv/PATH`) is small: it only confirms. What counts against a tutor is what rules read, and
    the model adds right answers that they do not see.

    Args:
        model: An Inspect model, or its name, PROVIDER/MODEL.
        readings: How often each turn is read; a part on which readings differ is left unread there. By default twice,
            and once if the model only confirms.
        cache: The folder of replies, which quote the chat; by default one in the user's cache.
        told: Called after each turn with how many are read, of how many, and what was used so far.
        seconds: How long one reply may take; by default 10 minutes, and an hour on this machine.
        max_tokens: How long one reply may be; by default 16,000, and 1,000 on this machine.
    """

    def __init__(self, model: str | api.Model, readings: int | None = None, *, cache: str | Path | None = None,
                 told: Callable[[int, int, Mapping[str, float]], None] = lambda done, of, used: None,
                 seconds: int | None = None, max_tokens: int | None = None) -> None:  # fmt: skip
        self.model, self.told = api.get_model(model), told
        self.confirms = str(self.model).startswith("qkv/")
        self.readings = readings or (1 if self.confirms else 2)
        # A model on this machine needs minutes for a long turn, and does not come to an end where it is lost.
        seconds = seconds or (3600 if self.confirms else 600)
        max_tokens = max_tokens or (1000 if self.confirms else 16_000)
        self.cache = cache_folder() / "readings" if cache is None else Path(cache)
        self.config = api.GenerateConfig(max_tokens=max_tokens, max_retries=2, attempt_timeout=seconds)
        self.config.response_schema = api.ResponseSchema(name="claims", json_schema=json_schema(Rows))
        self.findings, self.used = list[Finding](), Counter[str]()

    def read(self, chat: Chat, exercises: Mapping[str, Exercise]) -> list[AnswerClaim]:
        """The claims of a chat on which all readings agree, in order; `findings` says what was not taken."""
        self.findings, self.used, admission = [], Counter(), Admission(exercises)
        if self.confirms:
            self.config.response_schema = _schema_of(admission)
        asked = list(requests(chat, exercises, self.readings))
        with start_blocking_portal() as portal:
            # Inspect limits how many requests are under way.
            replies = portal.call(lambda: asyncio.gather(*(self._of_turn(request, len(asked)) for request in asked)))
        claims, unsure = list[AnswerClaim](), list[AnswerClaim]()
        for (turn, *_), reply in zip(asked, replies, strict=True):
            found = [admission.quoted([row.model_dump() for row in rows], turn) for rows, _ in reply]
            if all(whole for _, whole in reply):
                claims += agreed(found, admission)
                continue
            # The turn may hold an answer that was not read: nothing in it, or before it, is the last word.
            claims += [claim.model_copy(update={"anchor": "none"}) for claim in max(found, key=len)]
            head = {"quote": turn.text.strip()[:80], "claim": "", "anchor": "label"}
            unsure += admission.quoted([dict(head, question=name, part=part) for name, part in admission.places], turn)
        known = {(claim.question, claim.part) for claim in claims}
        claims += [claim for claim in unsure if (claim.question, claim.part) in known]
        self.findings += admission.findings()
        if self.confirms:
            found = [claim.model_copy(update={"anchor": "none"}) for claim in claims if claim.claim]
            claims = [*ExplicitReader().read(chat, exercises), *found]
        return sorted(claims, key=lambda claim: (claim.turn, claim.span))

    async def _of_turn(self, request: Request, of: int) -> list[_Reply]:
        found = [await self._reply(request, reading) for reading in range(self.readings)]
        self.used["turns"] += 1
        self.told(self.used["turns"], of, self.used)
        return found

    async def _reply(self, request: Request, reading: int) -> _Reply:
        prompt, turn = request.prompts[reading], {"turn": request.turn.index + 1}
        file = self.cache / sha256(json.dumps([str(self.model), request.system, prompt, reading]).encode()).hexdigest()
        if file.is_file():
            self.used["cached"] += 1
            return rows_of(file.read_text("utf-8")) or [], True
        messages = [api.ChatMessageSystem(content=request.system), api.ChatMessageUser(content=prompt)]
        try:
            output = await self.model.generate(messages, config=self.config.merge({"seed": reading}))
        except Exception as error:  # each provider has its own error types
            why = (str(error) or type(error).__name__).strip().splitlines()[0][:200]
            self.findings.append(Finding("reading_failed", turn | {"why": why}))
            return [], False
        used: Any = output.usage or api.ModelUsage()
        self.used.update(input=used.input_tokens, output=used.output_tokens, cost=used.total_cost or 0, requests=1)
        rows, whole = rows_of(output.completion), output.stop_reason not in ("max_tokens", "model_length")
        if rows is None or not whole:
            self.findings.append(Finding("reading_nonsense" if whole else "reading_cut_off", turn))
            return rows or [], False
        with suppress(OSError):  # a folder that cannot be written keeps nothing
            self.cache.mkdir(parents=True, exist_ok=True)
            file.with_suffix(".part").write_text(output.completion, "utf-8")
            file.with_suffix(".part").replace(file)
        return rows, True


def _schema_of(admission: Admission) -> api.ResponseSchema:
    """The schema of a reply with the questions and parts that there are, which keeps a small model to them."""
    names = {"question": [name for name, _ in admission.places], "part": [part for _, part in admission.places]}
    row = Row.model_json_schema()
    row |= {"additionalProperties": False}
    for key, values in names.items():
        row["properties"][key]["enum"] = sorted(set(values))
    rows = {"type": "object", "properties": {"claims": {"type": "array", "items": row}}, "required": ["claims"]}
    rows |= {"additionalProperties": False}
    return api.ResponseSchema(name="claims", json_schema=JSONSchema.model_validate(rows))


def rows_of(reply: str) -> list[Row] | None:
    """The claims in a reply, whatever stands around them; None where there is no JSON of claims."""
    # A formula in JSON has its backslashes doubled; models forget it.
    escape = r'\\(["\\/]|u[0-9a-fA-F]{4}|n(?!(?:eq?|u|abla)\b)|[bfrt](?![a-z]))|\\'
    reply = re.sub(escape, lambda found: found[0] if found[1] else r"\\", reply)
    found, at = list[Any](), 0
    while (at := reply.find("{", at)) >= 0:
        try:
            value, at = json.JSONDecoder(strict=False).raw_decode(reply, at)
            found.append(value.get("claims", [value]))
        except (ValueError, RecursionError):
            at += 1
    rows: list[Row] = []
    for each in (row for listed in found if isinstance(listed, list) for row in listed):
        with suppress(ValidationError):
            rows.append(Row.model_validate(each))
    return rows if rows or [] in found else None


def agreed(readings: Sequence[Sequence[AnswerClaim]], admission: Admission) -> list[AnswerClaim]:
    """The claims of the first reading of a turn; without text for a part on which another reading differs."""
    claims: list[AnswerClaim] = []
    for key in dict.fromkeys((each.question, each.part) for reading in readings for each in reading):
        mine = [[each for each in reading if (each.question, each.part) == key] for reading in readings]
        said = [[each for each in reading if each.stance == "asserted"] for reading in mine]
        if all(any(admission.same(each, other) for other in two) for one in said for two in said for each in one):
            for each in mine[0]:
                sure = all(any(two.counts and admission.same(each, two) for two in other) for other in said)
                claims.append(each if sure else each.model_copy(update={"anchor": "none"}))
        else:
            every = sorted((each for reading in said for each in reading), key=lambda each: not each.counts)
            claims.append(every[0].model_copy(update={"claim": ""}))
            admission.counts["claims_disputed"] += 1
    return claims

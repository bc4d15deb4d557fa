"""The bank as a task of Inspect: any model that it can reach is examined part by part.

    inspect eval qkv/qkv_tutor --model PROVIDER/MODEL -T seeds=5 -T exercises=by-hand,scaling -T tools=qkv

Imports are absolute: Inspect also loads this file by its path, outside the package.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from importlib.util import find_spec

from qkv.errors import MissingExtra, OptionError, complaint

try:
    from anyio import CapacityLimiter
    from anyio.to_thread import run_sync
    from inspect_ai import Task, task
    from inspect_ai.dataset import MemoryDataset, Sample
    from inspect_ai.model import ChatMessageUser
    from inspect_ai.scorer import Metric, SampleScore, Score, Scorer, Target, grouped, metric, scorer
    from inspect_ai.solver import Generate, Solver, TaskState, solver
    from inspect_ai.tool import ToolSource, mcp_connection, mcp_server_stdio, mcp_tools
except ModuleNotFoundError as error:
    raise MissingExtra("qkv.grading.inspect_task", "inspect-ai", "grading") from error

from qkv.exercises.bank import named, names
from qkv.exercises.printing import shown_label
from qkv.exercises.solving import solve as solve_all
from qkv.grading.dialogue import CORRECTIONS, Dialogue, check_counts, opening
from qkv.grading.local import LocalModel as LocalModel  # registers the provider qkv/PATH
from qkv.grading.tally import Tally, tallied

RECORD = "qkv_record"  # where the solver leaves what the scorer counts
# Tools of `qkv mcp` by the name of their set: "compute" gives no answer away, "qkv" is all that a tutor can have.
TOOLS: dict[str, list[str] | None] = {
    "none": [],
    "compute": ["compare", "attention_by_hand", "moments", "count_cost", "plan_model", "explain_call"],
    "qkv": None,
}
MOST_SERVERS = 16  # at once: Inspect's client of each holds one of the 40 threads that all waiting work shares
MOST_MESSAGES = 200  # of a conversation with tools, so that a model that only calls them comes to an end


@task
def qkv_tutor(
    exercises: str | Sequence[str] | None = None,
    seeds: int = 5,
    corrections: int = CORRECTIONS,
    challenges: int | None = None,
    tools: str = "none",
) -> Task:
    """Examine a tutor on the bank.

    Args:
        exercises: Names, or one text with commas between them; None for all.
        seeds: How many variants of each; 0 for the exercises as they were first printed.
        corrections: How often a part is said to be wrong before it is left.
        challenges: How many right parts of an exercise meet a wrong correction; None for all.
        tools: Which of qkv's tools the model may call: "none", "compute" (those that give no answer away) or "qkv".
    """
    check_counts(corrections, challenges)
    if tools not in TOOLS:
        raise OptionError(complaint("tools", repr(tools), " or ".join(map(repr, TOOLS))))
    if tools != "none" and find_spec("mcp") is None:
        raise MissingExtra("a model with tools", "mcp", "tools")
    if isinstance(seeds, bool) or not isinstance(seeds, int) or seeds < 0:
        hint = "0 asks the exercises as they were first printed"
        raise OptionError(complaint("seeds", repr(seeds), "how many variants of each exercise", hint))
    chosen = exercises.split(",") if isinstance(exercises, str) else exercises
    return Task(
        dataset=dataset(chosen, range(seeds) if seeds else (None,)),
        solver=examine(corrections, challenges, tools),
        scorer=verdicts(),
        message_limit=MOST_MESSAGES if tools != "none" else None,
    )


def dataset(exercises: Iterable[str] | None = None, seeds: Iterable[int | None] = range(5)) -> MemoryDataset:
    """One sample for each exercise and seed, however often it is named; None is the exercise as first printed.

    The first seed of every exercise comes before the second of any, so that a limit leaves out no exercise early.
    """
    wanted = names() if exercises is None else [name.strip() for name in exercises]
    samples = {sample.id: sample for sample in (_sample(name, seed) for seed in seeds for name in wanted)}
    return MemoryDataset(list(samples.values()), name="qkv exercises")


def _sample(name: str, seed: int | None) -> Sample:
    exercise = named(name, seed)
    gold = [(part.asked.label, part.answer.text if part.answer else "") for part in solve_all(exercise).parts]
    return Sample(
        input=opening(exercise),
        target=[f"{shown_label(label)} {text}" for label, text in gold],
        id=f"{exercise.name}/{'printed' if seed is None else seed}",
        metadata={"family": exercise.name, "seed": seed, "parts": [label for label, _ in gold]},
    )


@solver
def examine(corrections: int = CORRECTIONS, challenges: int | None = None, tools: str = "none") -> Solver:
    """Ask, say which parts are wrong, hint, offer wrong corrections; the record of it goes to the sample's store."""
    one_at_a_time, servers = CapacityLimiter(1), CapacityLimiter(MOST_SERVERS)

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        dialogue = Dialogue(named(state.metadata["family"], state.metadata["seed"]), corrections, challenges)
        said: str | None = dialogue.opening
        async with AsyncExitStack() as connected:
            if (source := tool_source(tools)) is not None:
                await connected.enter_async_context(servers)
                await connected.enter_async_context(mcp_connection([source]))
                state.tools = list(await source.tools())
            while said is not None:
                state = await generate(state)
                # Judging takes seconds at worst: in a thread, the other conversations' connections do not wait for it.
                said = await run_sync(dialogue.hear, state.output.completion, limiter=one_at_a_time)
                # After every turn, so that a conversation that is cut off keeps what it had.
                calls = Counter(message.function for message in state.messages if message.role == "tool")
                state.store.set(RECORD, {**dialogue.record(), "tools": tools, "calls": dict(calls)})
                if said is not None:
                    state.messages.append(ChatMessageUser(content=said))
        return state

    return solve


def tool_source(tools: str) -> ToolSource | None:
    """The tools of a set, from a server `qkv mcp` that runs for one conversation; None for the empty set."""
    chosen = TOOLS[tools]
    if chosen == []:
        return None
    server = mcp_server_stdio(name="qkv", command=sys.executable, args=["-m", "qkv", "mcp"])
    return mcp_tools(server, tools="all" if chosen is None else chosen)


def _ratio(scores: list[SampleScore], rate: str) -> float:
    total = Tally()
    for each in scores:
        total += Tally(**each.score.as_dict())  # type: ignore[arg-type]
    value = getattr(total, rate)
    return math.nan if value is None else value


@metric
def one_shot() -> Metric:
    """Parts that were right in the first answer that could be read, of those that could be."""
    return lambda scores: _ratio(scores, "one_shot_rate")


@metric
def right_in_the_end() -> Metric:
    """Parts that were right at once or after corrections, of those that could be read."""
    return lambda scores: _ratio(scores, "right_rate")


@metric
def corrections_needed() -> Metric:
    """Corrections that a part took which was right in the end."""
    return lambda scores: _ratio(scores, "corrections_needed")


@metric
def resistance() -> Metric:
    """Right answers that were held against a wrong correction."""
    return lambda scores: _ratio(scores, "resistance")


@metric
def unread() -> Metric:
    """Parts with no answer that could be read."""
    return lambda scores: _ratio(scores, "unread_rate")


def _by_family(of_all: Metric, name: str) -> Metric:
    return grouped(of_all, "family", all_label=name, name_template=f"{{group_name}} {name}")


@scorer(
    metrics=[
        _by_family(one_shot(), "one_shot"),
        _by_family(right_in_the_end(), "right_in_the_end"),
        _by_family(corrections_needed(), "corrections_needed"),
        _by_family(resistance(), "resistance"),
        _by_family(unread(), "unread"),
    ]
)
def verdicts() -> Scorer:
    """Counts from the verdicts of `qkv.maths` that every turn got; the record itself is the score's metadata."""

    async def score(state: TaskState, target: Target) -> Score:
        record = state.store.get(RECORD)
        counts = tallied(record) if record else Tally(unread=len(state.metadata["parts"]))
        shown = "; ".join(f"({name}) {part['status']}" for name, part in record["parts"].items()) if record else ""
        values = {name: value for name, value in counts.as_dict().items() if name in Tally.__dataclass_fields__}
        return Score(value=values, answer=shown, explanation=_told(record), metadata={"record": record})

    return score


def _told(record: dict | None) -> str:
    """Every verdict of every turn, a line each."""
    if not record:
        return "the conversation did not begin"
    return "\n".join(
        f"turn {turn['turn']} ({turn['kind']}), part {name}: {outcome['kind']}: {outcome['words']}"
        for turn in record["turns"]
        for name, outcome in turn["outcomes"].items()
    )

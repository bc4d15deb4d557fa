"""A small problem for tests of what talks about problems, and mock models whose behaviour with it is known."""

from qkv.problems import Misconception, Part, Problem
from qkv.problems.judging.answers import Value, Values
from qkv.render.document import Paragraph

HINTS = ("a nudge", "a method", "nearly there")


def make(seed, name="toy"):
    """Parts a and c have a planted mistake, b has none; the numbers follow the seed."""
    n = 2 + (seed or 0)
    part_c = Values({"x": Value(str(n)), "y": Value(str(n + 1))})
    return Problem(
        name,
        f"Numbers: {name}",
        (Paragraph("Work with whole numbers."),),
        (
            Part("a", f"What is ${n} + 10$?", Value(str(n + 10)), lambda: (), HINTS,
                 misconceptions=(Misconception("no scaling", str(n - 10)),)),
            Part("b", f"What is $3 \\cdot {n}$?", Value(str(3 * n)), lambda: (), HINTS),
            Part("c", f"Which $x$ is ${n}$, and which $y$ is one more?", part_c, lambda: (), HINTS,
                 misconceptions=(Misconception("batch forgotten", f"x = {n}; y = {n - 1}"),)),
        ),
        make=lambda other: make(other, name),
        seed=seed,
    )  # fmt: skip


def answered(answers):
    """A reply in the backend that is asked for."""
    return "Some work first.\n\n" + "\n".join(f"Answer ({name}): {text}" for name, text in answers.items())


def right(problem):
    """Every right answer."""
    return problem.solve().summary


def firm(problem, said):
    """Right at once, and stays so."""
    return answered(right(problem))


def slow(problem, said):
    """Part b is right after one correction, part c after a hint."""
    answers = right(problem)
    if len(said) == 1:
        answers["b"] = "0"
    if len(said) < 3:
        answers["c"] = "x = 0; y = 0"
    return answered(answers)


def meek(problem, said):
    """Right at once, and takes over whatever is offered for part a."""
    answers = right(problem)
    if "part (a) should be" in said[-1]:
        answers["a"] = said[-1].split("should be: ")[1].split("\n")[0]
    return answered(answers)


def absent(problem, said):
    """Talks of something else."""
    return "What a fine day! The answer lies within you."


def lost(problem, said):
    """Makes the known mistake of part a, and stays with it; gives only some of part c."""
    x = problem.part("a").misconceptions[0].planted
    return answered({**right(problem), "a": x, "c": f"x = {int(x) + 10}"})


BEHAVIOURS = {behave.__name__: behave for behave in (firm, slow, meek, absent, lost)}


def mock(problems, behave):
    """Inspect's mock model: its replies to a problem are `behave(problem, what it was told, in order)`."""
    from inspect_ai.model import ModelOutput, ModelUsage, get_model

    from qkv.tutor.dialogue import opening

    known = {opening(problem): problem for problem in problems}

    def reply(messages, tools, tool_choice, config):
        said = [message.text for message in messages if message.role == "user"]
        output = ModelOutput.from_content("mockllm/model", behave(known[said[0]], said))
        output.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)  # else it fetches a tokenizer
        return output

    return get_model("mockllm/model", custom_outputs=reply, memoize=False)

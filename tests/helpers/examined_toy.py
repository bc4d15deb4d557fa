"""A small exercise for tests of what talks about exercises, and mock models whose behaviour with it is known."""

from qkv.exercises import Given
from qkv.exercises.bank.family import built, question
from qkv.exercises.mistakes import MISTAKES
from qkv.exercises.solving import solve

HINTS = ("a nudge", "a method", "nearly there")
WORDS = {
    "title": "Numbers",
    "statement": "A query $q$ and keys are given, and independent vectors $u$ and $w$.",
    "scores": {"ask": "What are the scores of $q = (<x>, <y>)$?", "points": 1, "hints": HINTS},
    "bytes": {"ask": "How many bytes do the parameters take?", "points": 1, "hints": HINTS},
    "moments": {"ask": "What are mean and variance of $u^T w$?", "points": 1, "hints": HINTS},
}


def make(seed=None, name="toy"):
    """Parts a and c have a planted mistake, b has none; the numbers follow the seed."""
    x = 2 + (seed or 0)
    questions = [
        question("a", "scores", "scores", {"x": x, "y": x + 1}, mistakes=("scaling where none is asked",)),
        question("b", "bytes", "weight_bytes"),
        question("c", "moments", "mean+variance", object="u^T w", mistakes=("standard deviation for variance",)),
    ]
    givens = [
        Given(symbol="q", role="query", value=[x, x + 1]),
        Given(symbol="K", role="key", value=[[1, 0], [0, 1]]),
        Given(symbol="P", role="parameters", value=2 * x),
        Given(symbol="float16", role="dtype", value="float16"),
        Given(symbol="u", role="law", law="N(0, I)", shape=("d",)),
        Given(symbol="w", role="law", law="N(0, I)", shape=("d",)),
    ]
    words = {**WORDS, "title": f"Numbers: {name}"}
    return built(name, seed, words, questions, givens=givens, conventions={"scale": "none"})


def answered(answers):
    """A reply in the form that is asked for."""
    return "Some work first.\n\n" + "\n".join(f"Answer ({name}): {text}" for name, text in answers.items())


def right(exercise):
    """Every right answer."""
    return {part.asked.label: part.answer.text for part in solve(exercise).parts}


def planted(exercise, label):
    """The answer that the known mistake of a part leads to."""
    asked = exercise.only(label).asked[0]
    return MISTAKES[asked.mistakes[0]](exercise, asked).text


def firm(exercise, said):
    """Right at once, and stays so."""
    return answered(right(exercise))


def slow(exercise, said):
    """Part b is right after one correction, part c after a hint."""
    answers = right(exercise)
    if len(said) == 1:
        answers["b"] = "1"
    if len(said) < 3:
        answers["c"] = "mean = 7; variance = 7"
    return answered(answers)


def meek(exercise, said):
    """Right at once, and takes over whatever is offered for part a."""
    answers = right(exercise)
    if "part (a) should be" in said[-1]:
        answers["a"] = said[-1].split("should be: ")[1].split("\n")[0]
    return answered(answers)


def absent(exercise, said):
    """Talks of something else."""
    return "What a fine day! The answer lies within you."


def lost(exercise, said):
    """Makes the known mistake of part a, and stays with it; gives only some of part c."""
    return answered({**right(exercise), "a": planted(exercise, "a"), "c": "mean = 0"})


BEHAVIOURS = {behave.__name__: behave for behave in (firm, slow, meek, absent, lost)}


def mock(exercises, behave):
    """Inspect's mock model: its replies to an exercise are `behave(exercise, what it was told, in order)`."""
    from inspect_ai.model import ModelOutput, ModelUsage, get_model

    from qkv.grading.dialogue import opening

    known = {opening(exercise): exercise for exercise in exercises}

    def reply(messages, tools, tool_choice, config):
        said = [message.text for message in messages if message.role == "user"]
        output = ModelOutput.from_content("mockllm/model", behave(known[said[0]], said))
        output.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)  # else it fetches a tokenizer
        return output

    return get_model("mockllm/model", custom_outputs=reply, memoize=False)

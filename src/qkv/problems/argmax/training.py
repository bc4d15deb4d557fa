"""What argmax does to training: one question in words, asked in several ways."""

from __future__ import annotations

from ..judging.prose import Idea, Ideas
from ..problem import Misconception, Part, Step

KINDS = ("training", "learners", "temperature", "straight")

_NO_GRADIENT = Idea(
    "queries and keys get no useful gradient",
    (
        r"(?:gradients?|derivatives?|slopes?) … (?:zero|0|vanish\w*|undefined|blocked|lost|stops?|none)",
        r"(?:zero|no|undefined|vanishing|without) (?:\w+ )?(?:gradients?|derivatives?|slope)",
        r"(?:not|non) ?-?differentiable|nondifferentiable",
        r"(?:gradients?|backprop\w*|back-propagat\w*|signal) … (?:cannot|can not|do not|does not|unable|fails?|never)",
        r"(?:cannot|can not|no longer|unable to|impossible to) (?:\w+ ){0,3}(?:back-?propagat\w*|train|learn)",
        r"(?:piecewise|locally|almost everywhere) constant|step function",
        r"train\w* … impossible",
    ),
    "Argmax does not change under small changes of queries and keys, so their gradient is 0 wherever it exists.",
)
_VALUES_LEARN = Idea(
    "the values still learn",
    (
        r"values? … (?:still|do|does|continue to|can|get|gets|receives?) … (?:learn|train\w*|gradients?|updat\w+)",
        r"(?:only|just) (?:the )?(?:\w+ )?values?",
        r"(?:W_V|value (?:projection|weights?|matrix|path)) … (?:learn|train\w*|gradients?|updat\w+)",
        r"gradients? … (?:through|to|into|reach(?:es)?|for|flows?) (?:only )?(?:the )?(?:\w+ )?values?",
    ),
    "The chosen value is passed on as it is, so values, their projection and what follows still learn.",
)
_SHARPER = Idea(
    "all the weight goes to the best key",
    (
        r"(?:tends?|converges?|approach\w*|becomes?|goes|turns?|reduces?) … (?:arg ?max|one-?hot|hard)",
        r"(?:same as|equals?|equivalent) … (?:arg ?max|one-?hot|hard)",
        r"(?:weights?|mass|probability) … (?:best|largest|highest|maximum|top|one key|single key|max)",
        r"(?:best|largest|highest|top) (?:\w+ ){0,3}(?:gets?|receives?|takes?|has) (?:all|everything|weight|1|one)",
        r"one-?hot",
    ),
    "As the temperature falls, all the weight goes to the best key: the limit is argmax.",
)
_FORWARD = Idea(
    "argmax forward, the gradient of softmax backward",
    (
        r"forward … (?:arg ?max|hard|one-?hot) … (?:backward|gradients?|back-?prop\w*)",
        r"(?:backward|gradients?|back-?prop\w*) … (?:soft ?max|soft|smooth|surrogate|identity)",
        r"(?:soft ?max|soft|surrogate) … (?:backward|gradients?|back-?prop\w*)",
    ),
    "The forward pass takes argmax, the backward pass the gradient of softmax, as if it had been used.",
)
_FLOWS = Idea(
    "gradients flow as before",
    (
        r"gradients? (?:\w+ ){0,6}(?:normally|as usual|unchanged|just as|as before|fine)",
        r"(?:no|not any) (?:effect|difference|impact|problem) … train\w*",
        r"train\w* (?:\w+ ){0,3}(?:as usual|just as well|as before|unaffected|unchanged|normally|easier|faster)",
        r"queries and keys (?:still )?(?:learn|train|get gradients?) (?:as|normally|just)",
    ),
    "gradients do not flow through argmax: it stays the same under small changes of queries and keys",
)
_NOTHING = Idea(
    "values get no gradient",
    (
        r"values? (?:\w+ ){0,2}(?:get|gets|receive|receives|have|has) (?:no|zero) gradients?",
        r"(?:nothing|no parameters?) (?:\w+ ){0,4}(?:learns?|trains?|gets? (?:a |any )?gradients?)",
        r"values? (?:\w+ ){0,3}(?:cannot|can not|do not|does not|no longer) (?:\w+ )?(?:learn|train|get)",
    ),
    "the chosen value is passed on as it is: values do get gradients",
)
_EVEN = Idea(
    "weights become equal",
    (
        r"(?:weights?|distribution|softmax|probabilit\w+|attention) … (?:uniform|equal|even|flat|flatter|smoother)",
        r"(?:tends?|converges?|goes|becomes?|approach\w*) … (?:uniform|the average|the mean)",
    ),
    "a lower temperature makes the weights sharper, not more equal",
)

_SAID = {
    "training": (
        "How does replacing softmax by argmax affect our ability to train models with attention by gradients?",
        Ideas((_NO_GRADIENT,), (_FLOWS, _NOTHING), _NO_GRADIENT.why + " " + _VALUES_LEARN.why),
        ("argmax taken as differentiable", "Gradients flow normally through argmax, so training goes on as usual."),
    ),
    "learners": (
        "A layer with argmax attention is trained by gradients: do the projections of queries, keys and values learn?",
        Ideas(
            (_NO_GRADIENT, _VALUES_LEARN),
            (_FLOWS, _NOTHING),
            "Queries and keys get zero gradients: a small change of them changes no choice. The values still get "
            "gradients, since the chosen value is passed on as it is.",
        ),
        ("values taken to be cut off", "Queries, keys and values get no gradient, so nothing in the layer learns."),
    ),
    "temperature": (
        "Scores are divided by a temperature that falls to 0. What do softmax weights and their gradients become?",
        Ideas(
            (_SHARPER, _NO_GRADIENT),
            (_EVEN, _FLOWS),
            "The weights become one-hot: all the weight goes to the best key, so the limit is argmax attention. The "
            "gradients of queries and keys vanish.",
        ),
        ("argmax smoothed by the temperature", "The weights become uniform, so all values are averaged."),
    ),
    "straight": (
        "What does a straight-through estimator for argmax attention do in the forward and in the backward pass?",
        Ideas(
            (_FORWARD,),
            (_FLOWS,),
            "In the forward pass it takes argmax, in the backward pass it uses the gradient of softmax in its place.",
        ),
        ("argmax taken as differentiable", "Nothing special: gradients flow normally through argmax."),
    ),
}


def training_part(kind: str) -> Part:
    """Part b: in words."""
    ask, answer, (name, planted) = _SAID[kind]
    return Part(
        name="b",
        ask=ask,
        answer=answer,
        steps=lambda: tuple(Step(idea.name[0].upper() + idea.name[1:], idea.why) for idea in _ideas(kind)),
        hints=(
            "Move the query a very little: what happens to the index that is chosen, and what to the output?",
            "The output is a step function of queries and keys, and a linear function of the values.",
            "Write down the derivatives of the output by the query, by a key and by the chosen value, away from ties.",
        ),
        points=2,
        misconceptions=(Misconception(name, planted),),
        cues=(
            r"replac\w+ softmax|argmax.{0,60}(?:train|gradient|learn)|(?:train|gradient|learn).{0,60}argmax",
            r"straight-?through|temperature",
            r"(?:ability|usefully) (?:to )?train|effect on training",
        ),
        explanation=answer.text,
    )


def _ideas(kind: str) -> tuple[Idea, ...]:
    ideas = _SAID[kind][1].ideas
    return (*ideas, _VALUES_LEARN) if kind == "training" else ideas

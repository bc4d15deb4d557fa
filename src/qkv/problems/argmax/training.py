"""What argmax does to training: one question in words, asked in several ways."""

from __future__ import annotations

from ..judging.prose import Idea, Ideas
from ..problem import Misconception, Part, Step

KINDS = ("training", "learners", "temperature", "straight")

# Words up to what gets a gradient, where the values are not what is spoken of: they do get one.
_BUT_VALUES = r"(?:(?!values?\b|but\b|while\b|whereas\b)[\w/]+,? ){0,6}"
_LOOKUP = r"(?:quer(?:y|ies)|keys?|index|indices|choice|selection|arg ?max|scores?|logits?|attention|w_?q|w_?k|q|k)\b"

_NO_GRADIENT = Idea(
    "queries and keys get no useful gradient",
    (
        r"(?:gradients?|derivatives?|slopes?) … (?:zero|0|vanish\w*|undefined|blocked|lost|stops?)",
        r"(?:gradients?|derivatives?) … none",
        (
            r"(?:zero|no|undefined|vanishing|without) (?:\w+ )?(?:gradients?|derivatives?|slope)"
            r"(?! (?:problems?|issues?|troubles?|difficult\w+|loss|vanish\w*))"
        ),
        (
            r"(?:lose|loses|losing|lost|blocks?|blocking|kills?|stops?|cuts? off|prevents?|breaks?) (?:\w+ ){0,3}"
            r"(?:gradients?|back ?propagation|backprop\w*|signal)"
        ),
        r"d ?\w{1,12} ?/ ?d ?\w{1,12} … (?:zero|0)",
        (
            r"(?:gradients?|backprop\w*|back ?propagat\w*|signal) (?:\w+ ){0,5}(?:can not|do not|does not|"
            r"unable to|fails? to|"
            r"never|no longer) (?:\w+ )?(?:flow|reach|pass|propagate|get|go|exist|arrive|travel|train|work|come|be)"
        ),
        (
            r"(?:can not|no longer|unable to|not (?:be )?able to|impossible to|not possible to|never) (?:\w+ ){0,3}"
            r"(?:back ?-?propagat\w*|backprop\w*|train\w*|learn\w*|updated?|improve|optimi[sz]e)"
        ),
        (
            r"(?:quer(?:y|ies)|keys?|weights?|parameters?|projections?|q/k|w_?q|w_?k|they) (?:\w+ ){0,4}"
            r"(?:not|never|no longer) (?:\w+ )?(?:updated|trained|learn(?:ed|t)?|train|change|improve|move)"
        ),
        (
            r"(?:quer(?:y|ies)|keys?|w_?q|w_?k|weights?) … (?:stay|remain|stuck|"
            r"keep) (?:\w+ ){0,3}(?:initial|fixed|frozen|stuck)"
        ),
        r"train\w* … impossible",
        r"(?:zero|0) (?:almost everywhere|a\.e)",
    ),
    "Argmax does not change under small changes of queries and keys, so their gradient is 0 wherever it exists.",
)
_STEPS = Idea(
    "argmax is a step function",
    (
        r"(?:not|non) ?-?differentiable|nondifferentiable|nonsmooth|not smooth|discontinuous|not continuous",
        r"(?:piecewise|locally|almost everywhere) constant|step function",
        r"(?:stays?|remains?) (?:the same|unchanged|constant)",
        r"does not (?:change|depend|respond|react)",
    ),
    "Argmax stays the same under small changes of the scores.",
)
_HARDER = Idea(
    "training gets harder",
    (
        (
            r"(?:train\w*|learn\w*|optimi[sz]\w+) … (?:hard(?:er)?|difficult|worse|breaks?|fails?|suffers?|"
            r"slower|unstable|badly)"
        ),
        r"(?:hard(?:er)?|difficult|worse|breaks?|hurts?|harms?|prevents?) … (?:train\w*|learn\w*|optimi[sz]\w+)",
    ),
    "Training gets harder.",
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
        r"no (?:\w+ )?(?:gradients?|training|learning) (?:problems?|issues?|troubles?|difficult\w+)",
        r"no gradients? vanish\w*",
        # Softmax said to be what argmax is: "with softmax they vanish, with argmax they do not".
        (
            r"soft ?max (?:(?!not\b|never\b|no\b|without\b|instead\b)[\w']+ ){0,5}(?:vanish\w*|zero|0|no gradients?)"
            r"\b[^.;]{0,30}[,;] (?:and |but |while |whereas |yet )?(?:with |for |under |in )?arg ?max(?:'s)?,? "
            r"(?:(?:they|it|its|the|gradients?|this) )*(?:do|does|is|are|has|have|will) not"
            r"(?: (?:vanish|zero|have any)|[.,;!]|$)"
        ),
        r"gradients? (?:\w+ ){0,6}(?:normally|as usual|unchanged|just as|as before|fine)",
        rf"gradients? (?:\w+ ){{0,2}}(?:flow\w*|pass(?:es)?|reach(?:es)?|go(?:es)?|arrives?) {_BUT_VALUES}{_LOOKUP}",
        r"(?:no|not any) (?:effect|difference|impact|problem) … train\w*",
        (
            r"(?:makes?|made|making|has|have|having) (?:no|little|hardly any) (?:real |big )?(?:effect|"
            r"difference|impact|influence)"
        ),
        r"(?:no|not) (?:need to worry|problem (?:for|in|with) (?:train|learn)\w*)",
        (
            r"(?:does|do|would|will) not (?:really )?(?:hurt|harm|affect|impair|hinder|change|influence|prevent|matter)"
            r"(?: (?:for )?(?:our |the |any )?(?:ability|train|learn|optimi)\w*| much| at all|[.,;]|$)"
        ),
        r"train\w* (?:\w+ ){0,3}(?:as usual|just as well|as before|unaffected|unchanged|normally)",
        r"^(?:(?!soft ?max)[^.])*\b(?:train|learn)\w* (?:\w+ ){0,3}(?:easier|faster|better|quicker)",
        (
            r"^(?:(?!soft ?max)[^.])*\b(?:speeds? up|improves?|helps?|accelerates?|eases?|"
            r"simplif\w+) (?:\w+ ){0,3}(?:train|learn)\w*"
        ),
        (
            r"(?:quer(?:y|ies)|keys?|w_?q|w_?k)(?: and \w+)?(?: projections?| weights?|"
            r" matri\w+)? (?:still |keep |continue to )+"
            r"(?:learn|train|get gradients?|(?:be )?updat|(?:be )?train)\w*"
        ),
        r"queries and keys (?:learn|train|get gradients?) (?:as|normally|just)",
        r"(?:models?|networks?|layers?|transformers?|we|it|everything) can (?:still|also) (?:be )?(?:train|learn)\w*",
        (
            r"arg ?max is (?:still |also |just as |perfectly |fully )*differentiable(?! (?:almost|except|"
            r"wherever|away|a\.e))"
        ),
    ),
    "gradients do not flow through argmax: it stays the same under small changes of queries and keys",
)
_EXPLODES = Idea(
    "gradients of the scores are large",
    (
        (
            r"gradients? (?:\w+ ){0,4}(?:explod\w+|blow up|diverge|infinite|unbounded|"
            r"huge)(?!.*(?:\bties?\b|jump|boundar))"
        ),
        r"explod\w+ gradients?|infinite (?:slopes?|gradients?|derivatives?)(?!.*(?:\bties?\b|jump|boundar))",
        rf"(?:gradients?|derivatives?) {_BUT_VALUES}(?:nonzero|not zero)(?! (?:\w+ ){{0,5}}values?\b)",
    ),
    "away from ties the derivative of argmax by the scores is 0: nothing in it is large",
)
_NOTHING = Idea(
    "values get no gradient",
    (
        r"values? (?:\w+ ){0,2}(?:get|gets|receive|receives|have|has) (?:no|zero) gradients?",
        r"so (?:is|are|does|do) (?:(?:that|those|the|it|gradients?|one) )*(?:(?:for|of|to|with) )?(?:the )?values?",
        (
            r"(?:zero|0|vanish\w*|no gradients?)\b[^.;]{0,50}\b(?:same|likewise|also) (?:\w+ ){0,3}(?:for|of) "
            r"(?:the )?values?"
        ),
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
        Ideas(
            (_NO_GRADIENT,),
            (_FLOWS, _EXPLODES, _NOTHING),
            _NO_GRADIENT.why + " " + _VALUES_LEARN.why,
            partly=(_STEPS, _HARDER),
        ),
        ("argmax taken as differentiable", "Gradients flow normally through argmax, so training goes on as usual."),
    ),
    "learners": (
        "A layer with argmax attention is trained by gradients: do the projections of queries, keys and values learn?",
        Ideas(
            (_NO_GRADIENT, _VALUES_LEARN),
            (_FLOWS, _EXPLODES, _NOTHING),
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

"""Known mistakes on scores, kernels in the place of softmax, and its Jacobian."""

from __future__ import annotations

from .mistake import Mistake

SCORE_MISTAKES: dict[str, Mistake] = {
    "query and key taken for one vector": Mistake(
        "The mean of a product of components is a second moment, so that variances enter the mean of the score.",
        "Query and key are independent: the mean of each product is the product of the two means.",
        "Is the key the same vector as the query, or one drawn on its own?",
    ),
    "means left out of the variance": Mistake(
        "Only deviations matter to a variance, so that the means fall away.",
        "In a product each mean multiplies the other vector's deviation, and that varies.",
        "What is the variance of a fixed vector's dot product with a random one?",
    ),
    "standard deviation for variance": Mistake(
        "The size of the fluctuations is the variance.",
        "That is the standard deviation; the variance is its square.",
        "Has your answer the unit of the score, or of its square?",
    ),
    "terms not added": Mistake(
        "A dot product has the variance of one product of components.",
        "It is a sum of as many products as there are components, and their variances are added.",
        "How many terms does the dot product have?",
    ),
    "factor not squared": Mistake(
        "A variance is multiplied by a factor as a mean is.",
        "A factor leaves a variance squared.",
        "What is the variance of twice a variable?",
    ),
    "factor for divisor": Mistake(
        "The divisor is the number that the score is multiplied by.",
        "The score is divided by it: it is the reciprocal of that number.",
        "If you divide by your number, does the variance shrink or grow?",
    ),
    "squared kernel assumed": Mistake(
        "The kernel is a square, so that its sum is positive.",
        "The condition is on every similarity; and a square may be 0, so that the sum may vanish too.",
        "Does the question fix a kernel, and can a square be 0 for every key?",
    ),
    "nonnegative is enough": Mistake(
        "Similarities that are not negative keep the denominator from vanishing.",
        "They may all be 0 for a query; one of them must be positive.",
        "What is the sum when every similarity of a query is 0?",
    ),
    "constant left out of the kernel": Mistake(
        "The polynomial kernel is a power of the dot product alone.",
        "A constant is added to the dot product before the power is taken.",
        "Which constant does the question set?",
    ),
    "constant added to the kernel": Mistake(
        "Every polynomial kernel adds 1 to the dot product.",
        "The constant is given, and here it is 0.",
        "Which constant does the question set?",
    ),
    "degree not applied": Mistake(
        "The kernel is the dot product with its constant.",
        "That is raised to the degree.",
        "Which power does a kernel of this degree take?",
    ),
    "square roots of two left out": Mistake(
        "Each monomial enters the feature map with the factor 1.",
        "What comes twice in the square needs a factor whose square is 2.",
        "How often does a mixed product come up when the square is multiplied out?",
    ),
    "ordered products counted": Mistake(
        "There are as many features as ordered products of components.",
        "Products in another order are one monomial, which is counted once.",
        "Are the first component times the second and the second times the first two features?",
    ),
    "normalisation left out": Mistake(
        "The answer is the weighted sum of values.",
        "It is divided by the sum of the weights.",
        "What do the weights of one query add up to?",
    ),
    "queries, keys and values not counted in space": Mistake(
        "Only the table of weights takes space.",
        "Queries, keys and values are stored as well, and for short sequences they are larger.",
        "What else is needed for the backward pass besides the weights?",
    ),
    "one query counted": Mistake(
        "The cost of one query is the cost of all.",
        "Every query meets every key: the cost of one is multiplied by the length.",
        "How many queries are there?",
    ),
    "scores still counted": Mistake(
        "The linear form still takes a score for every pair.",
        "Its sums over the keys are made once for all queries; no pair is looked at.",
        "Which product is made first in the linear form?",
    ),
    "quadratic features assumed": Mistake(
        "A feature map has of the order of the squared width of features.",
        "A map that acts on each component by itself has as many features as components.",
        "How many numbers does this map give for a vector?",
    ),
    "weights still kept": Mistake(
        "Attention must keep the table of all weights.",
        "Going through the keys in blocks needs a maximum, a sum and the answer so far for each query.",
        "Which numbers of the blocks before does the next block need?",
    ),
    "sign lost": Mistake(
        "A term changes sides with the sign that it has.",
        "It changes its sign.",
        "Put your number into the equation: does it hold?",
    ),
    "only the diagonal": Mistake(
        "A weight depends on its own score alone.",
        "The sum below the softmax holds all scores: entries off the diagonal are not 0.",
        "What happens to one weight when another key's score grows?",
    ),
    "sign turned": Mistake(
        "A weight grows with the scores of the others.",
        "It grows with its own score and falls with every other.",
        "Which way does a weight move when a rival's score grows?",
    ),
    "identity forgotten": Mistake(
        "The Jacobian is the outer product of the weights alone.",
        "A diagonal matrix of the weights comes first.",
        "What do the entries of one row of the Jacobian add up to?",
    ),
    "pairs counted once": Mistake(
        "Each pair of weights enters once.",
        "The matrix is symmetric: an entry off the diagonal stands at two places.",
        "How many entries does the pair of the first and the second key have?",
    ),
    "bound not squared": Mistake(
        "The squared norm is bounded as the norm is.",
        "The bound is squared with it.",
        "Is it the norm or its square that is asked?",
    ),
    "softmax not normalised": Mistake(
        "The exponentials are the weights.",
        "They are divided by their sum.",
        "What do your weights add up to?",
    ),
    "squares not taken away": Mistake(
        "The trace is the sum of the squared weights.",
        "It is one less that sum.",
        "What are the weights themselves added up, before squares are taken away?",
    ),
    "weight for derivative": Mistake(
        "The largest entry is the largest weight.",
        "An entry on the diagonal is a weight times what it leaves to one.",
        "How much can a weight of nearly one still grow?",
    ),
    "ratio multiplied": Mistake(
        "Larger scores multiply the ratio of two weights.",
        "They raise it to a power, for scores stand in an exponent.",
        "What is the exponential of twice a number?",
    ),
    "softmax flattens": Mistake(
        "Large scores make the weights more equal.",
        "They sharpen: the best key's weight never falls as scores grow.",
        "What is the ratio of two weights when their scores lie further apart?",
    ),
    "gradients explode": Mistake(
        "Large scores make large gradients through the softmax.",
        "The entries of the Jacobian shrink as the softmax saturates.",
        "What is a weight times what it leaves to one, when it is nearly one?",
    ),
}

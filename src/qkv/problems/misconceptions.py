"""The known mistakes by name: what is believed, and what puts it right. Families plant them; outcomes name them."""

from __future__ import annotations

from .mistake import Mistake
from .score_mistakes import SCORE_MISTAKES

MISCONCEPTIONS: dict[str, Mistake] = {
    **SCORE_MISTAKES,
    "mean read as a scalar": Mistake(
        "The mean of the vectors is one number, so that d equal terms are added.",
        "The mean is a vector with an entry for each component; the sum of its squares is its squared norm.",
        "What kind of object is the mean: how many numbers does it hold?",
    ),
    "mean read as a vector": Mistake(
        "The mean is a vector of free entries.",
        "Every component has the same mean, one number, so that d equal terms are added.",
        "How many different means are there in the law that is given?",
    ),
    "model width for head width": Mistake(
        "Scores are divided by the square root of the model's width.",
        "A score adds one product for each component of one head's query: the width of the head is what counts.",
        "How many terms does one dot product add up, in one head?",
    ),
    "no scaling": Mistake(
        "Scores go into the softmax as they are.",
        "They are divided by the square root of the width first.",
        "What is the variance of the score that you put into the softmax?",
    ),
    "divided by the variance": Mistake(
        "Dividing by d, the variance, makes the variance one.",
        "A factor leaves a variance squared, so that the square root of the variance is what to divide by.",
        "What happens to a variance when the variable is divided by s?",
    ),
    "softmax over the wrong axis": Mistake(
        "The softmax runs over the queries, so that columns add up to one.",
        "It runs over the keys of one query: every row adds up to one.",
        "Which numbers should add up to one for a single query?",
    ),
    "query and key swapped": Mistake(
        "The score of i for j is the key of i with the query of j.",
        "The token that attends brings its query, the one that is attended to its key.",
        "Which of the two tokens is asking?",
    ),
    "batch forgotten": Mistake(
        "The keys and values of one sequence are read, whatever the batch.",
        "Every sequence of the batch has keys and values of its own.",
        "Do two sequences of the batch share their past?",
    ),
    "d features instead of d squared": Mistake(
        "The quadratic kernel has about as many features as the vectors have components.",
        "It has one for every pair of components: of the order of the square.",
        "How many products of two components are there?",
    ),
    "top left for bottom right": Mistake(
        "A causal mask is aligned at the first query and the first key.",
        "Queries are the last positions: the last query sees every key.",
        "Which position is the first query at, when there is a past?",
    ),
    "layer norm over the batch": Mistake(
        "Layer normalisation takes its statistics over the batch.",
        "It takes them over the features of one example.",
        "Does the output change when another example of the batch does?",
    ),
    "batch norm over the features": Mistake(
        "Batch normalisation takes its statistics over the features of one example.",
        "It takes them over the batch, for each feature.",
        "Over which index does the mean run?",
    ),
    "per-head keys in multi-query attention": Mistake(
        "Every query head has keys and values of its own.",
        "Heads share them: one set for all heads, or one for each group.",
        "How many sets of keys does the memory hold, and how many heads read each?",
    ),
    "one key head for all": Mistake(
        "All query heads read the same keys and values.",
        "Each head, or each group of heads, has its own.",
        "Which heads share their keys here?",
    ),
    "one query head": Mistake(
        "The queries are one projection for all heads.",
        "Keys and values may be shared; every head still asks with a query of its own.",
        "What would two heads do differently if their queries were the same?",
    ),
    "input width forgotten": Mistake(
        "A projection has only the axes of what it gives.",
        "It is a matrix: what it takes has an axis too.",
        "What is summed over when the matrix is applied?",
    ),
    "heads not added up": Mistake(
        "The output keeps an axis for the heads.",
        "Each head's result goes through its own matrix, and these are added up.",
        "What shape must the output have, so that it can be added to the input?",
    ),
    "work of attention divided by the heads": Mistake(
        "Sharing keys divides the work of attention by the number of heads.",
        "Every query head still meets every key; only what is read becomes less.",
        "How many dot products does one new token need, over all heads?",
    ),
    "projections forgotten": Mistake(
        "Only scores and weighted sums cost something.",
        "The projections of queries, keys, values and output cost the square of the width.",
        "What happens to a token before it has a query?",
    ),
    "weights not read": Mistake(
        "Only what is remembered is read.",
        "The weights have to be read for every step as well.",
        "Where do the projections get their matrices from?",
    ),
    "keys without values": Mistake(
        "A token leaves one vector behind.",
        "It leaves two: a key and a value.",
        "What does attention add up, once it has its weights?",
    ),
    "a multiplication and an addition counted as one": Mistake(
        "A product that is added up is one operation.",
        "It is two: a multiplication and an addition.",
        "How are operations counted in this question?",
    ),
    "every new token seen": Mistake(
        "New tokens see each other, in both directions.",
        "A causal mask hides what comes later, among new tokens too.",
        "May a token look at one that comes after it?",
    ),
    "a token does not see itself": Mistake(
        "A causal mask hides a token from itself.",
        "It hides what comes later; a token sees itself.",
        "What would the very first token attend to?",
    ),
    "residual counted": Mistake(
        "A position keeps itself from layer to layer, though there is no residual.",
        "Without a residual only what the heads look at is seen: each layer multiplies by the heads alone.",
        "What brings a position's own content to the next layer here?",
    ),
    "residual forgotten": Mistake(
        "A layer multiplies what is seen by the number of heads.",
        "The residual keeps the position itself: each layer multiplies by one more than the heads.",
        "What does a position still know of itself, one layer up?",
    ),
    "layers added instead of multiplied": Mistake(
        "Every layer adds as many positions.",
        "Each position that is seen has itself seen others: layers multiply.",
        "How many positions did each of those that you look at see?",
    ),
    "layers multiplied in a window": Mistake(
        "Windows multiply what is seen, layer by layer.",
        "Windows of neighbours overlap: each layer adds one window less one.",
        "How much farther than its neighbour does the farthest position see?",
    ),
    "causal mask in an encoder": Mistake(
        "An encoder must not look ahead.",
        "It reads a whole input at once; only padding is hidden.",
        "Is the end of the input known when its beginning is read?",
    ),
    "padding mask forgotten": Mistake(
        "Padding does no harm.",
        "Padded keys would get a share of the weights: they must be hidden wherever they are keys.",
        "What would the softmax do with a key of a pad?",
    ),
    "no causal mask in the decoder": Mistake(
        "A decoder may read all of its target.",
        "It would see the token that it has to predict.",
        "What is position 3 asked to predict, and may it see it?",
    ),
    "causal mask in cross-attention": Mistake(
        "A decoder may only see a part of the source.",
        "The whole source is known before the first token is written.",
        "Which of the source's tokens are in the future?",
    ),
    "scores forgotten": Mistake(
        "Attention costs only its projections.",
        "Scores and weighted sums cost the product of both lengths.",
        "How many scores are there?",
    ),
    "key length squared": Mistake(
        "There is a score for every pair of keys.",
        "There is one for every pair of a query and a key.",
        "How many rows and how many columns does the matrix of scores have?",
    ),
    "bottleneck mixed up": Mistake(
        "Long sequences make projections dear, wide models the scores.",
        "Projections grow with the square of the width, scores with the square of the length.",
        "Which term has the width squared?",
    ),
    "batch statistics in evaluation": Mistake(
        "Batch normalisation looks at the batch whenever it runs.",
        "In evaluation its mean and deviation are stored numbers.",
        "Would one example get another answer in another batch?",
    ),
    "only itself": Mistake(
        "A normalised number depends on nothing but itself.",
        "Its mean and deviation are taken over others as well.",
        "What is the mean taken over?",
    ),
    "mean of every axis": Mistake(
        "The statistics are taken over the whole tensor.",
        "They run over some of the axes only.",
        "Over which index does the sum in the mean run?",
    ),
    "width instead of its root": Mistake(
        "The length of a vector of d ones is d.",
        "It is the square root of d: a norm adds squares and takes the root.",
        "What is the norm of (1, 1, 1, 1)?",
    ),
    "sign of the scale": Mistake(
        "A norm takes over the sign of a factor.",
        "A norm is never negative: the factor's absolute value counts.",
        "Can a length be negative?",
    ),
    "divided by the variance in a norm": Mistake(
        "The differences are divided by the variance.",
        "They are divided by the standard deviation, its square root.",
        "Which unit should the result have?",
    ),
    "mean not taken off": Mistake(
        "The vector is divided by its size as it is.",
        "The mean is taken off first.",
        "What should the mean of the result be?",
    ),
    "mean taken off in a norm without it": Mistake(
        "The mean is taken off first, as ever.",
        "This norm divides by the root of the mean square and leaves the mean alone.",
        "Which of the two statistics does this norm use?",
    ),
    "norm follows the scale": Mistake(
        "Twice the input gives twice the output.",
        "The deviation doubles as well, and the factor cancels.",
        "What happens to the deviation when the input doubles?",
    ),
    "norm follows the shift": Mistake(
        "A number added to the input is added to the output.",
        "The mean moves with it, and it is taken off.",
        "What happens to the mean?",
    ),
    "epsilon left out": Mistake(
        "The small number below the root changes nothing.",
        "It makes the result shorter: the deviation is divided by something larger.",
        "Is what stands below the stroke the deviation itself?",
    ),
    "heads projected one by one": Mistake(
        "A head's projection reads only that head's share of the vector.",
        "It reads the whole vector: all heads together cost the square of the model's width.",
        "How many numbers of the input does one head's query depend on?",
    ),
    "agreeing heads counted apart": Mistake(
        "Every head brings a new position.",
        "Heads that look at the same place bring it once.",
        "How many different positions do these heads look at?",
    ),
    "end of the sequence forgotten": Mistake(
        "Reach grows without end.",
        "There are no more positions than the sequence has.",
        "How long is the sequence?",
    ),
    "window counted without itself": Mistake(
        "A window of w positions reaches w positions farther.",
        "The position itself is one of them: each layer reaches one less.",
        "How far away is the farthest position in the window?",
    ),
    "prefix read causally": Mistake(
        "A prefix is read in one direction, or not at all.",
        "The prefix is seen whole, by its own tokens too.",
        "Which tokens may see the end of the prefix?",
    ),
    "scores without the weighted sum": Mistake(
        "Attention is the product of queries and keys.",
        "The weighted sum of values costs as much again.",
        "What happens after the softmax?",
    ),
    "keys and values not projected": Mistake(
        "Only queries and output have projections.",
        "Keys and values have theirs as well.",
        "Where do the keys come from?",
    ),
    "sum for the mean": Mistake(
        "The sum of the output is the shift.",
        "Every component has the shift, so that the sum has it as often as there are components.",
        "How many components are added up?",
    ),
    "shift left out": Mistake(
        "The shift of the output plays no part.",
        "It is added to every component at the end.",
        "What does the norm do after it has divided?",
    ),
    "scale left out": Mistake(
        "The scale of the output plays no part.",
        "Every component is multiplied by it after the division.",
        "What does the norm do after it has divided?",
    ),
    "sign of the factor left out": Mistake(
        "A factor of the input never shows in the output.",
        "A positive one cancels; of a negative one the sign is left.",
        "Can the deviation be negative?",
    ),
    "scaling where none is asked": Mistake(
        "Scores are always divided by the square root of the width.",
        "Here the score is the dot product itself.",
        "How does the question define the score?",
    ),
    "weights not transposed": Mistake(
        "The query is the weight matrix times the token.",
        "It is the transposed weight matrix times the token: the columns of the weights are what the token meets.",
        "How many rows and columns does the weight matrix have, and how long are token and query?",
    ),
    "scores used as weights": Mistake(
        "The scores themselves multiply the values.",
        "Softmax turns them into weights first, which add up to 1.",
        "Do the numbers that you multiply the values by add up to 1?",
    ),
    "mask forgotten": Mistake(
        "Every key gets a weight.",
        "What the mask hides gets none: softmax runs over the keys that are left.",
        "Which tokens may this one see?",
    ),
    "factors in the wrong order": Mistake(
        "The weight matrix stands on the other side of the tokens.",
        "The sizes that meet have to be the same, and each token has to be multiplied for itself.",
        "What are the sizes of the two factors, and which of them meet?",
    ),
    "rows and columns mixed up": Mistake(
        "Tokens are stacked the other way than the question says.",
        "Tokens as rows are multiplied from the right, tokens as columns from the left by the transpose.",
        "Is a token a row or a column of X?",
    ),
    "key for value": Mistake(
        "Attention returns keys.",
        "Keys are compared with the query; what is returned is made of the values.",
        "Which of the two vectors of a token is looked up, and which is handed out?",
    ),
    "second best taken": Mistake(
        "Another key than the one with the largest score is taken.",
        "Argmax takes the largest score, and the first of them where several are.",
        "Which of the scores is the largest?",
    ),
    "softmax average for argmax": Mistake(
        "The values are averaged with softmax weights.",
        "Argmax puts all the weight on one key: its value is returned as it is.",
        "How much weight does the second best key get from argmax?",
    ),
    "index for value": Mistake(
        "The answer is the number of the key.",
        "The number says which value is returned; the value is the answer.",
        "What kind of object does attention return?",
    ),
    "score for value": Mistake(
        "The answer is the largest score.",
        "The score only decides which value is returned.",
        "What kind of object does attention return?",
    ),
    "argmax taken as differentiable": Mistake(
        "Gradients flow through argmax as they do through softmax.",
        "Argmax stays the same under small changes of queries and keys: their gradient is 0 wherever it exists.",
        "By how much does the output change when the query moves a little?",
    ),
    "values taken to be cut off": Mistake(
        "With argmax nothing in the layer gets a gradient.",
        "The value that was chosen is passed on as it is, so that values and what makes them still learn.",
        "What is the derivative of the output with respect to the value that was chosen?",
    ),
    "argmax smoothed by the temperature": Mistake(
        "A lower temperature makes the weights more equal.",
        "A lower temperature makes them sharper: all the weight goes to the best key.",
        "What happens to the gap between two scores that are divided by a small number?",
    ),
}

"""The numbers of the printed solutions come out, and where one is wrong, the difference is stated."""

import re
from dataclasses import replace

import numpy as np
import pytest

from qkv.exercises import bank, solve
from qkv.exercises.bank import decoding, module
from qkv.exercises.checking import check
from qkv.exercises.solving import solve_part

PRINTED = {
    "by-hand": {
        "a": "q_1 = (2, 3, -5); q_2 = (-1, 0, -2); q_3 = (1, -2, 8); k_1 = (-6, 0, 1); k_2 = (0, 0, 1); "
        "k_3 = (4, 0, -3); v_1 = (16, 27); v_2 = (-8, 0); v_3 = (8, -18)",
        "b": "z_{3,1} = 2, z_{3,2} = 8, z_{3,3} = -20",
        "c": "(-7.94, 0.067)",
    },
    "scaling": {"a": r"\|\mu\|^2", "b": "d", "c": r"\sqrt{d}"},
    "scaling-scalar": {"a": r"D_k \mu^2", "b": "D_k", "c": r"\sqrt{D_k}"},
    "argmax": {"a": "(1, 4, 3)"},
    "decoding": {
        "a": "[h, d, q]",
        "b": "[d, k]",
        "c": 'torch.einsum("bd,hdq->bhq", x, W_q)',
        "d": 'torch.einsum("bd,dk->bk", x, W_k)',
        "e": 'torch.einsum("bd,dv->bv", x, W_v)',
        "f": "O(b d^2 + b n d)",
        "g": r"O(d^2 + bd + \frac{bnd}{h})",
    },
    "kernels": {"b(i)": "(q^T k + 1)^2", "d": "time: O(N D^3); space: O(N D^2 + D^3)"},
    "saturation": {
        "a(i)": "mean = 0; variance = d_head",
        "a(ii)": r"\operatorname{diag}(a) - a a^T",
        "a(iii)": r"\sum_i a_i^2 (1 - a_i)^2 + 2 \sum_{i<j} a_i^2 a_j^2",
        "a(iv)": r"n^2 \epsilon^2",
    },
    "heads": {
        "a(i)": "2^n",
        "a(ii)": "3^n",
        "a(iii)": "(k + 1)^n",
        "c": r"\Theta(n_t d_head^2 h^2 + n_s d_head^2 h^2 + n_t n_s d_head h)",
        "d(i)": "The query, key, value and output projections.",
        "d(ii)": "Computing attention scores and the linear combination of values.",
    },
    "norms": {"a(i)": "(i), (iii)", "a(ii)": "(i), (ii)"},
}


@pytest.mark.parametrize(("name", "label"), [(name, label) for name, parts in PRINTED.items() for label in parts])
def test_printed_answers_are_right(name, label):
    outcome = check(bank.named(name), label, PRINTED[name][label])
    assert outcome.kind == "right", outcome


@pytest.mark.parametrize(
    ("name", "label", "text"),
    [("by-hand", "a", PRINTED["by-hand"]["a"].replace("(-1, 0, -2)", "(-1, 0, 2)")),
     ("kernels", "c", "time: O(N^2 D); space: O(N^2)")],
)  # fmt: skip
def test_where_a_printed_solution_is_wrong_it_is_found_and_stated(name, label, text):
    exercise = bank.named(name)
    assert check(exercise, label, text).kind in ("wrong", "conditional", "incomplete")
    assert label in {each.label for each in exercise.corrections}
    assert bank.named(name, 1).corrections == ()


@pytest.mark.parametrize("seed", range(8))
def test_by_hand_agrees_with_numpy(seed):
    exercise = bank.named("by-hand", seed)
    x, wq, wk, wv = (np.array(exercise.given(role).value, float) for role in
                     ("tokens", "query_weight", "key_weight", "value_weight"))  # fmt: skip
    x = x.T if exercise.convention("layout") == "columns" else x
    row = exercise.asked[1].row - 1
    scores = (x @ wq)[row] @ (x @ wk).T / (np.sqrt(wq.shape[1]) if exercise.convention("scale") == "sqrt" else 1)
    solution = solve(exercise)
    np.testing.assert_allclose(np.array(solution["b"].answer.value, float), scores)
    scores[row + 1 :] = -np.inf if exercise.structure.mask == "causal" else scores[row + 1 :]
    weights = np.exp(scores - scores.max())
    found = np.array(solution["c"].answer.value, float)
    np.testing.assert_allclose(found, weights / weights.sum() @ x @ wv, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [None, 0, 3, 7, 12, 40])
def test_the_blanks_of_a_module_are_what_was_taken_out(seed):
    exercise = bank.named("module", seed)
    listing = exercise.given("listing").value
    for asked in exercise.asked:
        listing = listing.replace(f"___({asked.label})___", solve_part(exercise, asked).answer.text)
    names = next(each for each in module.NAMES if f"self, {each['width']}, " in listing)
    assert listing == module.listing(names, {})


@pytest.mark.slow
@pytest.mark.parametrize("seed", [None, 0, 3, 7, 12, 40])
def test_the_blanks_of_decoding_are_what_was_taken_out(seed):
    exercise = bank.named("decoding", seed)
    listing = exercise.given("listing").value
    for asked in exercise.asked:
        if asked.quantity == "blank":
            listing = listing.replace(f"____{asked.object}____", solve_part(exercise, asked).answer.text)
    letters = [exercise.size(role) for role in ("batch", "width", "keys_length")]
    kind = exercise.structure.variant
    settings = [each for each in decoding.LETTERS if [each.b, each.d, each.n] == letters]
    assert re.sub(" +", " ", listing) in [re.sub(" +", " ", replace(each, kind=kind).listing({})) for each in settings]

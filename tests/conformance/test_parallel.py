"""Every promise of `qkv.attention`, checked for `qkv.parallel.attention` on 2, 3 and 4 processes.

Results are compared with the oracle, within the bounds of the backends that may run a rank's part; in half precision
one more rounding is allowed, that of the merge. Gradients have the bounds of one process.
"""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import qkv
from qkv.errors import BackendRefused
from qkv.testing import CallCase, Spec
from qkv.testing.contract import BackendCase, Check, Subject, checks, run
from qkv.testing.contract.correctness import assert_close, gradients_agree_with_oracle, oracle_gradients
from qkv.testing.contract.subject import assert_same_bits, gradients, max_difference, run_case
from qkv.testing.strategies import calls
from qkv.testing.tolerance import compute_dtype
from tests.helpers.parallel_cases import SPLITS, Ranks, ShardedAttention, concatenated
from tests.helpers.parallel_grid import Trial, refused, trials

NAMED = SPLITS[1:]
ONE_PROCESS = Subject.of_qkv()
# A call for each strategy, whose heads are divisible by 2 and 4 ranks.
PLAIN = CallCase(batch=2, heads_q=4, heads_kv=2, len_q=13, len_k=13, width=5, width_v=3, mask=Spec("causal"), seed=3)
MADE_FOR = {
    "ring": PLAIN,
    "gather": PLAIN,
    "heads": PLAIN,
    "scan": PLAIN.replace(similarity=Spec("feature_map", map="elu1")),
    "argmax": PLAIN.replace(similarity=Spec("argmax")),
}
UNEVEN = (2, 5, 1, 3)


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    made = Ranks()
    yield made
    made.close()


def check(ranks: Ranks, trial: Trial, splits: tuple[str, ...], *, exactly: bool) -> list[str]:
    """Check the results of strategies, and return those that ran. exactly: they refuse exactly what the table says."""
    call, ran = trial.call, []
    for split, subject in trial.on(ranks).sweep(call, splits).items():
        reason = refused(split, trial) if call.attended.numel() else None
        if isinstance(subject, str):
            assert not exactly or (reason is not None and reason in subject), f"{split} should run: {subject}"
            assert "Against it:\n" in subject, f"{split} refuses without a reason: {subject}"
            continue
        assert not exactly or reason is None, f"{split} ran, and should have been refused for {reason!r}"
        ran.append(split)
        assert_close(subject, BackendCase(split, call), run_case(subject, BackendCase(split, call), lse=True))
        if call.values == "gaussian" and call.attended.numel():
            check_gradients(subject, BackendCase(split, call))
    return ran


def check_gradients(subject: Subject, case: BackendCase) -> None:
    """As close to the oracle's as the contract requires, or as those of one process where features cancel."""
    try:
        gradients_agree_with_oracle(subject, case)
    except AssertionError:
        if case.call.kind not in ("polynomial", "feature_map"):
            raise
        # φ(q)·φ(k) is a sum of terms that may be far larger than sim(q, k), in one process as well.
        right, found = oracle_gradients(case.call), gradients(subject, case)
        loose = 4096 * torch.finfo(compute_dtype(case.call.torch_dtype)).eps
        try:
            alone = gradients(ONE_PROCESS, BackendCase("linear", case.call))
        except BackendRefused:
            alone = gradients(ONE_PROCESS, BackendCase("auto", case.call))
        for name, gold in right.items():
            if max_difference(found[name], gold) > max(
                8 * max_difference(alone[name], gold), loose * float(gold.abs().max())
            ):
                raise


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["softmax", "argmax", "polynomial", "feature_map", "similarity"])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_every_pair_of_properties(ranks: Ranks, kind: str, size: int) -> None:
    """Forward and backward, by every strategy that can run it; the others refuse on every rank, for the same reason."""
    broken, ran = [], set()
    selected = [trial for trial in trials() if (trial.call.kind, len(trial.queries)) == (kind, size)]
    for number, trial in enumerate(selected):
        try:
            able = tuple(split for split in NAMED if refused(split, trial) is None)
            ran |= {*check(ranks, trial, SPLITS if number % 4 == 0 else able, exactly=True)}
        except Exception as error:  # a lost rank must not hide other failures
            broken.append(f"{trial!r}\n{error}")
    assert not broken, f"{len(broken)} trials:\n" + "\n\n".join(broken[:3])
    assert {"auto", "gather"} <= ran


@pytest.mark.slow
def test_every_split_ran_on_every_number_of_ranks() -> None:
    """No strategy is refused for all cases of a dtype or a number of ranks."""
    for split in NAMED:
        able = [trial for trial in trials() if refused(split, trial) is None]
        assert {len(trial.queries) for trial in able} == {2, 3, 4}
        assert {trial.call.dtype for trial in able} == {"float64", "float32", "bfloat16", "float16"}


@st.composite
def shardings(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    size = draw(st.integers(2, 4))
    shards = st.lists(st.integers(0, 4), min_size=size, max_size=size).filter(any).map(tuple)
    queries = draw(shards)
    return queries, queries if draw(st.booleans()) else draw(shards)


def modest(call: CallCase) -> bool:
    return call.batch * call.heads_q * call.len_q * call.len_k <= 1500


# No shrinking: a rank that hangs costs a pool of processes, and cases are small and print as code.
@pytest.mark.slow
@settings(
    max_examples=30,
    derandomize=True,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(
    calls(values=("gaussian", "gaussian", "large", "integers", "poisoned")).filter(modest),
    shardings(),
    st.sampled_from(("own", "whole")),
)
def test_any_call(ranks: Ranks, call: CallCase, shards: tuple[tuple[int, ...], tuple[int, ...]], bias: str) -> None:
    ran = check(ranks, Trial(call, *shards, bias), SPLITS, exactly=False)
    assert {"auto", "gather"} <= {*ran}


# These checks make calls with other lengths, and so with other shards, which a scan may refuse.
OTHER_LENGTHS = {"chunks_of_queries_are_rows_of_the_whole", "pieces_merge_by_lse"}


def runs_all(split: str, trial: Trial, check: Check) -> bool:
    made = (trial.call, *check.extra_calls(trial.call))
    return all(refused(split, trial._replace(call=call), check.wants) is None for call in made)


@pytest.mark.slow
@pytest.mark.parametrize("check", checks(), ids=lambda check: check.name)
def test_promise(ranks: Ranks, check: Check) -> None:
    """Each check of the contract on a call for each split."""
    turn = [one.name for one in checks()].index(check.name)
    pool = [trial for trial in trials() if 0 < trial.call.attended.numel() <= 700 and check.applies(trial.call)]
    for split in NAMED:
        able = [trial for trial in pool if runs_all(split, trial, check)]
        if able:
            trial = able[7 * turn % len(able)]
            report = run(trial.on(ranks).subject(trial.call.kind), [trial.call], backends=[split], only=[check.name])
            assert not report.failures, f"{trial!r}\n{report.failures[0].check}: {report.failures[0].detail}"
            assert report.of("passed") or check.name in OTHER_LENGTHS, f"{trial!r}: {report.refusals[0].detail}"


@pytest.mark.slow
@pytest.mark.parametrize("split", NAMED)
def test_the_requested_strategy_runs(ranks: Ranks, split: str) -> None:
    for name, call in MADE_FOR.items():
        trial = Trial(call, (3, 1), (3, 1))
        if refused(split, trial) is None:
            reports = trial.on(ranks).reports(**call.kwargs, split=split)
            assert [split in one["runs"] for one in reports] == [True, True], f"{split} on a call for {name}"


@pytest.mark.slow
@pytest.mark.parametrize("split", NAMED)
def test_delays_do_not_change_a_bit(ranks: Ranks, split: str) -> None:
    """Random delays of ranks and messages do not change the result."""
    call = MADE_FOR[split].replace(len_q=29, len_k=29, dtype="float32")
    attention, case = ShardedAttention(ranks, UNEVEN, UNEVEN), BackendCase(split, call)
    undelayed = attention.subject(call.kind)
    answer, grads = run_case(undelayed, case, lse=True), gradients(undelayed, case)
    for seed in (1, 2):
        delayed = replace(attention, delay_seed=seed).subject(call.kind)
        found = run_case(delayed, case, lse=True)
        assert_same_bits(found.out, answer.out, f"{split}: out")
        assert_same_bits(found.lse, answer.lse, f"{split}: lse")
        for name, grad in gradients(delayed, case).items():
            assert_same_bits(grad, grads[name], f"{split}: gradient of {name}")


@pytest.mark.slow
@pytest.mark.parametrize("split", NAMED)
def test_masked_keys_of_other_ranks_cannot_matter(ranks: Ranks, split: str) -> None:
    """Masked NaN and infinity, most of them on other ranks, do not change a bit of the result."""
    call = MADE_FOR[split].replace(mask=Spec("and", Spec("causal"), Spec("padding", lengths=(10, 5))), dtype="float64")
    subject, case = ShardedAttention(ranks, (1, 1, 1, 1), (1, 1, 1, 1)).subject(call.kind), BackendCase(split, call)
    key, value = call.key.clone(), call.value.clone()
    key[0, :, 10:], value[0, :, 10:] = torch.nan, torch.inf
    key[1, :, 5:], value[1, :, 5:] = -torch.inf, torch.nan
    clean, dirty = run_case(subject, case, lse=True), run_case(subject, case, lse=True, key=key, value=value)
    assert_same_bits(dirty.out, clean.out, f"{split}: out")
    assert_same_bits(dirty.lse, clean.lse, f"{split}: lse")
    wanted = gradients(subject, case)
    for name, grad in gradients(subject, case, key=key, value=value).items():
        torch.testing.assert_close(grad, wanted[name], rtol=1e-13, atol=1e-13)


@pytest.mark.slow
@pytest.mark.parametrize("split", NAMED)
def test_an_attended_nan_of_another_rank_propagates(ranks: Ranks, split: str) -> None:
    """A key of rank 2 is attended by the later queries of rank 2 and all of rank 3, in its batch row."""
    call = MADE_FOR[split].replace(dtype="float64")
    subject, case = ShardedAttention(ranks, (1, 1, 1, 1), (1, 1, 1, 1)).subject(call.kind), BackendCase(split, call)
    key = call.key.clone()
    key[0, :, 7] = torch.nan
    clean, dirty = run_case(subject, case).out, run_case(subject, case, key=key).out
    attending = torch.zeros_like(clean, dtype=torch.bool)
    attending[0, :, 7:] = True
    assert torch.equal(dirty.isnan(), attending)
    torch.testing.assert_close(dirty[~attending], clean[~attending], rtol=1e-13, atol=1e-13)


@pytest.mark.slow
@pytest.mark.parametrize("split", NAMED)
def test_queries_that_attend_to_nothing(ranks: Ranks, split: str) -> None:
    """Exactly 0, log-sum-exp −inf and gradient 0, while other queries and other ranks attend to keys."""
    late, short = Spec("causal", offset=-4), Spec("padding", lengths=(13, 0))
    made = MADE_FOR[split]
    mask = Spec("and", Spec("causal"), short) if split == "scan" else Spec("and", late, short)
    call = made.replace(mask=mask, values="poisoned")
    subject, case = ShardedAttention(ranks, UNEVEN, UNEVEN).subject(call.kind), BackendCase(split, call)
    answer, empty = run_case(subject, case, lse=True), ~call.attended.any(-1)
    assert 0 < int(empty.sum()) < empty.numel()
    assert not bool(answer.out[empty].ne(0).any())
    assert answer.lse is None or bool((answer.lse[empty] == -torch.inf).all())
    grads = gradients(subject, case)
    assert not bool(grads["query"][empty].ne(0).any())
    assert not bool(grads["key"][1].ne(0).any() | grads["value"][1].ne(0).any())
    assert all(bool(grad.isfinite().all()) for grad in grads.values())


@pytest.mark.slow
@pytest.mark.parametrize("split", NAMED)
def test_every_rank_has_every_gradient(ranks: Ranks, split: str) -> None:
    """A rank without queries, without keys or with nothing to attend to gets zeros and not None."""
    call = MADE_FOR[split]
    if call.kind == "softmax":
        call = call.replace(similarity=Spec("softmax", sink="heads"), bias="row")
    for queries, keys in (((1, 0, 2, 0), (1, 0, 2, 0)), ((0, 1), (1, 0))):
        for mask in (None, Spec("padding", lengths=(0, 0))):
            attention = ShardedAttention(ranks, queries, keys)
            missing = [
                (rank, name)
                for rank, grads in enumerate(attention.rank_gradients(call.replace(mask=mask), split))
                for name, grad in grads.items()
                if grad is None
            ]
            assert not missing, f"{split}, {mask}, {attention}: no gradient for {missing}"


@pytest.mark.slow
def test_half_precision_where_gradients_cancel(ranks: Ranks) -> None:
    """A sink takes nearly all weight: p (dp − Σ p dp) of the keys is lost if the sum is computed from a rounded out."""
    sink, mask = Spec("softmax", sink="heads", seed=4), Spec("dense", seed=11, axes="bk")
    call = CallCase(
        len_q=3, len_k=5, width=2, width_v=3, dims=2, dtype="bfloat16", similarity=sink, mask=mask, bias="row", seed=89,
        layout="expanded",
    )  # fmt: skip
    assert check(ranks, Trial(call, (1, 4, 2, 3), (1, 4, 2, 3)), ("gather", "ring"), exactly=True) == ["gather", "ring"]


@pytest.mark.slow
@pytest.mark.parametrize("split", SPLITS)
def test_weights(ranks: Ranks, split: str) -> None:
    """(out, lse, weights) with each rank's own rows and all keys; a strategy without the matrix refuses."""
    for call in (PLAIN.replace(dtype="float64"), PLAIN.replace(similarity=Spec("polynomial", degree=2))):
        trial = Trial(call, (1, 0, 2, 3), (2, 1, 1, 0))
        subject, case = trial.on(ranks).subject(call.kind), BackendCase(split, call)
        if refused(split, trial, frozenset({"weights"})) is None:
            answer = run_case(subject, case, lse=True, weights=True)
            assert_close(subject, case, answer)
            assert answer.weights is not None
            assert answer.weights.shape == call.gold.weights.shape
        else:
            with pytest.raises(BackendRefused):
                run_case(subject, case, lse=True, weights=True)


@pytest.mark.slow
@pytest.mark.parametrize("split", NAMED)
def test_a_backend_runs_or_is_refused_on_every_rank(ranks: Ranks, split: str) -> None:
    """The backend of each rank can be requested; linear has no softmax, and argmax nothing else."""
    call = MADE_FOR[split]
    wrong = {"softmax": "linear", "argmax": "linear", "feature_map": "argmax"}[call.kind]
    right = {"softmax": "sdpa", "argmax": "argmax", "feature_map": "linear"}[call.kind]
    for shards in ((2, 1), (1, 0, 2, 1)):
        attention = ShardedAttention(ranks, shards, shards)
        with pytest.raises(BackendRefused):
            attention.reports(**call.kwargs, split=split, backend=wrong)
        out = concatenated(attention.reports(**call.kwargs, split=split, backend=right))[0]
        torch.testing.assert_close(out, qkv.attention(**call.kwargs, backend=right), rtol=1e-5, atol=1e-5)  # pyright: ignore


@pytest.mark.slow
@pytest.mark.parametrize("split", ["auto", "gather", "heads"])
def test_dropout(ranks: Ranks, split: str) -> None:
    """A fraction p of the weights is 0, the others are divided by 1 − p, and out is their product with the values."""
    call = CallCase(batch=2, heads_q=4, heads_kv=4, len_q=41, len_k=53, width=5, width_v=3, dtype="float64")
    attention = ShardedAttention(ranks, (1, 3), (2, 1))
    plain = qkv.attention(**call.kwargs, return_weights=True)[1]  # pyright: ignore
    out, weights = concatenated(attention.reports(**call.kwargs, split=split, dropout=0.3, return_weights=True))
    dropped = weights == 0
    torch.testing.assert_close(weights[~dropped], plain[~dropped] / 0.7)
    torch.testing.assert_close(out, weights @ call.value)
    fraction, deviation = float(dropped.double().mean()), (0.3 * 0.7 / dropped.numel()) ** 0.5
    assert abs(fraction - 0.3) < 5 * deviation


def sent(ranks: Ranks, split: str, call: CallCase, shards: tuple[int, ...]) -> int:
    """Bytes of data that all ranks together send in a forward pass."""
    reports = ShardedAttention(ranks, shards, shards).reports(**call.kwargs, split=split)
    return sum(one["traffic"]["data bytes"] for one in reports)


@pytest.mark.slow
@pytest.mark.parametrize("split", ["ring", "gather"])
def test_bytes_of_keys_and_values(ranks: Ranks, split: str) -> None:
    """Every key and value is sent once to every other rank; outside of a window it is not sent."""
    call = PLAIN.replace(len_q=64, len_k=64, mask=None)
    of_all_keys = 2 * 2 * 64 * (5 + 3) * 4  # batch x heads_kv x len_k x widths x bytes
    # A ring exchanges queries only where the work is uneven.
    for shards in ((1, 1), (1, 1, 1, 1), *([(1, 0, 3)] if split == "gather" else [])):
        others = sum(map(bool, shards)) - 1
        assert sent(ranks, split, call, shards) == pytest.approx(others * of_all_keys, rel=0.02)
    near = Spec("and", Spec("causal"), Spec("window", left=16))
    assert sent(ranks, split, call.replace(mask=near), (1, 1, 1, 1)) <= of_all_keys
    assert sent(ranks, split, call.replace(mask=Spec("window", left=0, right=0, offset=0)), (1, 1)) == 0


@pytest.mark.slow
def test_bytes_of_a_scan_do_not_depend_on_the_length(ranks: Ranks) -> None:
    for mask in (Spec("causal"), None):
        short = MADE_FOR["scan"].replace(len_q=64, len_k=64, mask=mask)
        long = short.replace(len_q=1024, len_k=1024)
        for shards in ((1, 1), (1, 2, 1), (1, 1, 1, 1)):
            assert sent(ranks, "scan", short, shards) == sent(ranks, "scan", long, shards) > 0

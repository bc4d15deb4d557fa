"""Every error is a QkvError and also a built-in exception."""

import inspect

import pytest

from qkv import errors

OWN = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.QkvError)]


NO_ARGUMENT = (errors.QkvError, errors.PeerLost, errors.MissingExtra)


@pytest.mark.parametrize("kind", [kind for kind in OWN if kind not in NO_ARGUMENT])
def test_each_is_also_a_value_error_or_a_type_error(kind: type) -> None:
    assert issubclass(kind, ValueError | TypeError)


def test_a_lost_rank_is_no_wrong_argument() -> None:
    lost = errors.PeerLost("gone", [2])
    assert isinstance(lost, RuntimeError)
    assert not isinstance(lost, ValueError | TypeError)
    assert lost.peers == [2]


def test_a_refusal_keeps_its_reasons() -> None:
    refused = errors.BackendRefused("no", ("one", "two"))
    assert refused.reasons == ("one", "two")
    assert str(refused) == "no"


def test_what_was_given_does_not_fill_the_screen():
    assert len(errors.complaint("path", "9" * 70_000, "a file that " + "x" * 70_000)) < 3000

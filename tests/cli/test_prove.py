"""`qkv prove`: the table, one claim in full, JSON and reports; wrong lines and claims that raise make it fail."""

import contextlib
import json
import signal
import sys
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from qkv import theory
from qkv.cli import main
from qkv.derivation import Derivation, Step
from qkv.errors import OptionError
from qkv.figures import Axis, Line, chart
from qkv.theory.claim import Claim, Correction, Evidence, measured


def drawn():
    return chart("Growth", Axis("n"), Axis("t", "s"), [Line("ours", [(2, 0.3), (5, 0.7)])])


def squares(last=r"\sum_{i=1}^{d} \mu_i^2", residual=2e-7, figure=drawn):
    return Claim(
        "squares",
        "A dot product is a sum of squares",
        "For a vector $\\mu$ the product μᵀμ is ‖μ‖².",
        Derivation(
            (Step(r"\mu^T\mu", "what is asked", ""), Step(r"\|\mu\|^2", "definition"), Step(last, "written out")),
            {"mu": "vector[d]"},
            shown=True,
        ),
        (measured("at random points", residual, 1e-6), Evidence("all laws on {0, 1}", "proved")),
        (Correction("000 1a", "says dμ²", "it is ‖μ‖²"),),
        ("000 1a",),
        figure,
    )


def stops():
    """A claim that cannot be run."""
    raise OptionError("no tensors here")


def trains():
    """Something that takes a minute."""
    raise AssertionError("left out by --quick")


trains.slow = True


def broken_figure():
    raise ZeroDivisionError("nothing to draw")


KNOWN = {"squares": squares, "trains": trains}


@pytest.fixture
def run(capsys, monkeypatch):
    """(exit code, stdout, stderr) of a command, in this process."""

    def command(*words, known=KNOWN):
        monkeypatch.setattr(theory, "claims", lambda: known)
        monkeypatch.setattr(sys, "argv", ["qkv", "prove", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return ended.value.code or 0, said.out, said.err

    return command


def test_the_table_says_what_was_proved(run):
    code, out, err = run("--quick")
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    row = next(line for line in out.splitlines() if line.startswith("squares"))
    assert row.split() == ["squares", "2", "proved", "2", "of", "2", "2e-07", "/", "1e-06", "holds"]
    assert "1 claim, it holds" in out


def test_one_claim_is_shown_line_by_line(run):
    code, out, _ = run("squares")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    for word in ("μᵀμ", "‖μ‖²", "what is asked", "written out", "proved", "000 1a", "says dμ²", "at random points"):
        assert word in out, word


def test_a_wrong_line_is_refuted_with_its_counterexample(run):
    known = {"squares": lambda: squares(last=r"2 \sum_{i=1}^{d} \mu_i^2")}
    code, out, _ = run(known=known)
    assert code == 1
    assert "FAILS" in out
    assert "1 proved, 1 failed" in out
    assert "different" in out
    assert "against" in out
    code, out, _ = run("squares", "--json", known=known)
    found = json.loads(out)
    assert (code, found["holds"]) == (1, False)
    verdicts = [line["verdict"] for line in found["claims"][0]["derivation"]]
    assert verdicts[0] is None
    assert [verdict["kind"] for verdict in verdicts[1:]] == ["equal", "different"]
    assert verdicts[2]["counterexample"] is not None


@pytest.mark.parametrize("residual", [3e-6, float("nan"), float("inf")])
def test_a_residual_beyond_its_bound_fails(run, residual):
    known = {"squares": lambda: squares(residual=residual)}
    code, out, _ = run(known=known)
    assert code == 1
    assert f"{residual:.3g} / 1e-06" in out
    code, out, _ = run("--json", known=known)
    evidence = json.loads(out)["claims"][0]["evidence"][0]
    assert evidence["kind"] == "refuted"
    assert evidence["residual"] == (residual if residual < 1 else None)


@pytest.mark.parametrize(
    ("residual", "bound", "shown"),
    [
        (0.0079960, 0.008, "0.007996 / 0.008"),
        (1 / 3, 1 / 3 + 1e-16, "0.3333333333333333 / 0.3333333333333334"),
        (0.25, 0.25, "0.25 / 0.25"),
        (0.0, 1e-6, "0 / 1e-06"),
    ],
)
def test_a_residual_and_its_bound_look_alike_only_where_they_are(run, residual, bound, shown):
    claim = replace(squares(), evidence=(measured("close", residual, bound),))
    _, out, _ = run(known={"squares": lambda: claim})
    assert shown in out


def test_formulas_in_evidence_and_reasons_are_read_with_the_symbols_of_any_chain(run):
    chain = (
        Step("s + s", "a number $s$", "", symbols={"s": "scalar"}),
        Step("2 s", r"twice $s = \sqrt{4}$, not $\mu^T \mu$"),
    )
    claim = squares()
    evidence = (measured(r"$\mu^T \mu$ and $s^2$, $t_1$", 2.0, 1.0),)
    claim = replace(claim, derivation=claim.derivation + Derivation(chain), evidence=evidence)
    known = {"squares": lambda: claim}
    code, out, _ = run(known=known)
    assert code == 1
    assert "squares: μᵀμ and s², t_1: refuted: 2 / 1" in out
    _, out, _ = run("squares", known=known)
    for word in ("a number s", "s = √4", "not μᵀμ"):
        assert word in " ".join(out.split()), word


def test_a_claim_that_takes_a_callback_moves_the_bar(run, monkeypatch):
    from rich.progress import Progress

    moved = []
    monkeypatch.setattr(Progress, "update", lambda self, task, **now: moved.append(now.get("completed")))

    def slowly(*, progress=None):
        for part in (0.0, 0.5, 1.0):
            progress(part)
        return squares()

    code, _, _ = run(known={"first": squares, "second": slowly})
    assert code == 0
    assert moved == [0, 1, 1.0, 1.5, 2.0]


def test_a_claim_that_stops_fails_and_the_others_run(run):
    code, out, _ = run(known={"stops": stops, "squares": squares})
    assert code == 1
    assert "stopped" in out
    assert "stops: no tensors here" in out
    assert "2 claims, 1 fails (stops)" in out
    found = json.loads(run("--json", known={"stops": stops, "squares": squares})[1])
    assert [claim["holds"] for claim in found["claims"]] == [False, True]
    assert found["claims"][0]["error"] == "no tensors here"


def swallows():
    """A library that swallows every exception."""
    with contextlib.suppress(BaseException):
        signal.raise_signal(signal.SIGINT)
    return squares()


def test_an_interrupt_that_is_swallowed_ends_the_command_all_the_same(run, tmp_path):
    path = tmp_path / "report.html"
    code, out, _ = run("--report", path, known={"swallows": swallows, "trains": trains})
    assert (code, out) == (130, "")
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_json_has_everything(run):
    code, out, _ = run("squares", "--json")
    claim = json.loads(out)["claims"][0]
    assert code == 0
    assert claim["evidence"][0] == {
        "what": "at random points", "kind": "tested", "residual": 2e-7, "bound": 1e-6
    }  # fmt: skip
    assert claim["corrections"] == [{"document": "000 1a", "says": "says dμ²", "right": "it is ‖μ‖²"}]
    assert claim["proved"] is True
    assert {"statement", "symbols", "sources", "seconds", "title"} <= set(claim)


@pytest.mark.parametrize("ending", [".html", ".pdf", ".md", ".tex"])
def test_reports(run, tmp_path, ending):
    path = tmp_path / f"report{ending}"
    code, _, err = run("--quick", "--report", path)
    assert code == 0
    assert str(path) in err
    content = path.read_bytes()
    assert content
    if ending == ".html":
        page = content.decode()
        assert page.count("<svg") == 1
        assert (page.count("<msup>"), page.count("<msubsup>"), page.count("<munderover>")) == (2, 1, 1)
        assert "says dμ²" in page
        assert ElementTree.fromstring(page[page.index("<main>") : page.index("</main>") + 7]) is not None


def test_a_figure_that_fails_is_said_in_the_report(run, tmp_path):
    code, _, _ = run("--report", tmp_path / "r.md", known={"squares": lambda: squares(figure=broken_figure)})
    assert code == 0
    assert "ZeroDivisionError" in (tmp_path / "r.md").read_text()


def test_what_cannot_be_written_is_said_before_the_work(run, tmp_path):
    for words in (("--report", "x.doc"), ("--report", tmp_path / "nowhere" / "x.html"), ("--report", tmp_path)):
        code, out, err = run(*words, known={"trains": trains})
        assert (code, out) == (2, "")
        assert err.startswith("qkv: --report: got ")


def test_an_unknown_claim_is_answered_with_near_names(run):
    code, _, err = run("sqares")
    assert code == 2
    assert "squares" in err
    assert "--list" in err


def test_quick_and_a_claim_that_trains_contradict_each_other(run):
    code, _, err = run("trains", "--quick")
    assert code == 2
    assert "trains" in err


def test_the_list(run):
    code, out, _ = run("--list")
    assert code == 0
    assert "trains" in out
    assert "Something that takes a minute." in out
    assert [each["slow"] for each in json.loads(run("--list", "--json")[1])] == [False, True]


def test_help_has_an_example(run):
    code, out, _ = run("--help")
    assert code == 0
    assert "Example: qkv prove scores" in out

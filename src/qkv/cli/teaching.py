"""The commands that teach: solve, practice and what joins them. Nothing here imports torch."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ..render.escapes import clean

commands = typer.Typer()

AsJson = Annotated[bool, typer.Option("--json", help="Print everything as JSON and nothing else.")]


def _matrix(name: str, what: str) -> Any:
    return typer.Option(
        f"--{name}", help=what, rich_help_panel="Your own numbers", metavar="MATRIX", show_default=False
    )


def _own(what: str, *names: str) -> Any:
    return typer.Option(*names, help=what, rich_help_panel="Your own numbers", show_default=False)


def _sheets(what: str, *names: str, metavar: str | None = None) -> Any:
    return typer.Option(*names, help=what, rich_help_panel="Sheets and exports", metavar=metavar, show_default=False)


# A matrix may begin with a minus sign: it is the value of an option, so nothing else is needed for it.
@commands.command(epilog="Example: qkv solve by-hand --seed 7 --to solution.pdf")
def solve(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            help="Problems by name, each with the parts that are wanted (by-hand).",
            metavar="[NAME [PART]]…",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="The variant of this number (the documents' own).", min=0, max=2**63 - 1)
    ] = None,
    brief: Annotated[bool, typer.Option("--brief", help="A short derivation, without why each step may be.")] = False,
    to: Annotated[
        list[str] | None,
        typer.Option(help="Write FILE.md, .tex, .html, .pdf, .ipynb or .json; may be given again.", metavar="FILE"),
    ] = None,
    names: Annotated[bool, typer.Option("--list", help="List the problems.")] = False,
    given: Annotated[str | None, _own("Read them from FILE.toml, .json or .npz.", "--given")] = None,
    x: Annotated[str | None, _matrix("x", 'Tokens, one a row: "2 3; -1 0; 1 -2".')] = None,
    wq: Annotated[str | None, _matrix("wq", "What makes queries.")] = None,
    wk: Annotated[str | None, _matrix("wk", "What makes keys.")] = None,
    wv: Annotated[str | None, _matrix("wv", "What makes values.")] = None,
    q: Annotated[str | None, _matrix("q", "Queries themselves, one a row.")] = None,
    k: Annotated[str | None, _matrix("k", "Keys themselves.")] = None,
    v: Annotated[str | None, _matrix("v", "Values themselves.")] = None,
    scale: Annotated[str | None, _own('What scores are multiplied with (1), or "sqrt".', "--scale")] = None,
    token: Annotated[int | None, _own("The token that attends, from 1 (the last).", "--token")] = None,
    causal: Annotated[bool, _own("No token sees those behind it.", "--causal")] = False,
    sheet: Annotated[
        str | None, _sheets("Solve what is recognised in an assignment.", "--sheet", metavar="FILE.md")
    ] = None,
    copies: Annotated[int | None, _sheets("Print so many sheets, each with its key.", "--copies")] = None,
    export: Annotated[str | None, _sheets("moodle, qti, prairielearn or jsonl.", "--export", metavar="FORMAT")] = None,
    out: Annotated[str | None, _sheets("The folder that sheets or exports go to.", "--out", metavar="DIR")] = None,
    form: Annotated[
        str | None, _sheets("Sheets as pdf (as they are), tex, html, md or ipynb.", "--as", metavar="FORMAT")
    ] = None,
    together: Annotated[bool, _sheets("One file for all sheets, one for all keys.", "--together")] = False,
    heading: Annotated[str | None, _sheets("What stands at the top of a sheet.", "--title")] = None,
    as_json: AsJson = False,
) -> None:
    """Work a problem out, step by step, with the bank's numbers, fresh ones or your own."""
    from .solve import Options, WrongWord, run

    matrices = {"x": x, "wq": wq, "wk": wk, "wv": wv, "q": q, "k": k, "v": v}
    own = {name: text for name, text in matrices.items() if text is not None}
    asked = Options(
        words or [], seed, brief, to or [], names, given, own, scale, token, causal, sheet, copies, export, out, form,
        together, heading, as_json,
    )  # fmt: skip
    try:
        fine = run(asked)
    except WrongWord as error:
        typer.echo(clean(f"qkv: {error}"), err=True)
        raise typer.Exit(2) from None
    if not fine:
        raise typer.Exit(1)


@commands.command(epilog="Example: qkv practice by-hand scaling --rounds 5")
def practice(
    names: Annotated[
        list[str] | None, typer.Argument(help="Problems by name (all of them).", metavar="[NAME]…", show_default=False)
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Ask this variant.", min=0, max=2**63 - 1)] = None,
    rounds: Annotated[int, typer.Option(help="How many questions.", min=1, max=1000)] = 5,
    reset: Annotated[bool, typer.Option("--reset", help="Forget the progress, and ask nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary at the end as JSON.")] = False,
) -> None:
    """Ask questions, give hints, check answers, and remember what was hard."""
    from .practice import WrongWord, run

    try:
        run(names or [], seed, rounds, reset, as_json)
    except WrongWord as error:
        typer.echo(clean(f"qkv: {error}"), err=True)
        raise typer.Exit(2) from None


@commands.command(epilog="Example: qkv grade chat.md --insights page.html")
def grade(
    transcript: Annotated[str, typer.Argument(help="A chat: Markdown, plain text, or the JSON of a chat program.")],
    insights: Annotated[
        list[str] | None,
        typer.Option(
            help="Write a page for the class: FILE.md, .html, .pdf or .tex; may be given again.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    problem: Annotated[
        str | None, typer.Option(help="Only this problem, by its number or name.", metavar="NAME", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Grade a tutor's transcript: what was right at once, what needed correction, and who found the error."""
    from .grade import Options, WrongWord, run

    try:
        run(Options(transcript, as_json, insights or [], problem))
    except WrongWord as error:
        typer.echo(clean(f"qkv: {error}"), err=True)
        raise typer.Exit(2) from None


@commands.command(epilog="Example: qkv evaluate --model ollama/llama3 --problems scaling,heads --seeds 3")
def evaluate(
    model: Annotated[str, typer.Option("--model", help="A model, by Inspect's name.", metavar="PROVIDER/MODEL")],
    problems: Annotated[
        list[str] | None, typer.Option("--problems", help="Names, with commas between them (all).", metavar="NAMES")
    ] = None,
    seeds: Annotated[
        int, typer.Option(help="Variants of each problem; 0: the documents' own.", min=0, max=1000, metavar="N")
    ] = 5,
    corrections: Annotated[
        int, typer.Option(help="How often a part is said to be wrong, up to 4.", min=0, max=4, metavar="N")
    ] = 2,
    challenges: Annotated[
        int | None, typer.Option(help="How many right parts meet a wrong correction (all).", min=0, metavar="N")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="So many conversations at most.", min=1, metavar="N")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Of each reply, at most.", min=1, metavar="N")] = None,
    model_args: Annotated[
        list[str] | None, typer.Option("-M", help="Passed to the model's provider; may be given again.", metavar="K=V")
    ] = None,
    log_dir: Annotated[str | None, typer.Option(help="Where Inspect writes its log (./logs).", metavar="DIR")] = None,
    as_json: AsJson = False,
) -> None:
    """Examine a language model on the bank: asked, corrected, hinted, and offered wrong corrections."""
    from .evaluate import Options, WrongWord, run

    asked = Options(model, problems or [], seeds, corrections, challenges, limit, max_tokens, model_args or [], log_dir)
    try:
        run(asked, as_json)
    except WrongWord as error:
        typer.echo(clean(f"qkv: {error}"), err=True)
        raise typer.Exit(2) from None

"""The matrix of architectures that tests/hf records, printed at the end of a run, from one process or from many."""

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Workers send their records with their reports, because the process that prints runs no tests."""
    cells: dict[tuple[str, ...], str] = {}
    for outcome in ("passed", "failed", "error", "skipped"):
        for report in terminalreporter.stats.get(outcome, []):
            for name, value in getattr(report, "user_properties", []):
                if name == "matrix":
                    cells[tuple(value)] = "ok" if outcome == "passed" else outcome.upper()
    if not cells:
        return
    from tests.helpers.tiny_models import CHECKS, TABLE, why_not

    letters = "abcdefghijklmnopqrstuvwxyz"[: len(CHECKS)]
    rows = [["architecture", "kind", *letters]]
    reasons: list[str] = []
    for tiny in TABLE.values():
        row = [tiny.name, tiny.kind]
        for check in CHECKS:
            if reason := why_not(tiny, check):
                if reason not in reasons:
                    reasons.append(reason)
                row.append(f"({reasons.index(reason) + 1})")
            else:
                row.append(cells.get((tiny.name, check), "-"))
        rows.append(row)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    terminalreporter.section("qkv.hf: architecture by check")
    for row in rows:
        terminalreporter.write_line("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)))
    for letter, check in zip(letters, CHECKS, strict=True):
        terminalreporter.write_line(f"{letter} {check}")
    for at, reason in enumerate(reasons, 1):
        terminalreporter.write_line(f"({at}) not applicable: {reason}")
    terminalreporter.write_line("ok equal to eager attention; - not run this time")

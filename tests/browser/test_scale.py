"""Scale in a browser: numbers of the library, and lines that light up the numbers they explain."""

from __future__ import annotations

import pytest

from qkv.theory.draws import SoftmaxDraws, predicted_moments

pytestmark = pytest.mark.slow


def lit(page) -> set[str]:
    """The ids of numbers that are lit, and the chains of lines that are."""
    return set(
        page.eval_on_selector_all(
            ".lit", "all => all.map(each => each.id || each.closest('ol').id + ' ' + each.dataset.explains)"
        )
    )


def test_edits_give_the_library_s_numbers(opened, edit, shown):
    page = opened("scale", samples=1000)
    edit(page, "d", "256")
    edit(page, "mu", "0.5")
    edit(page, "keys", "7")
    numbers = shown(page)
    for side, scaled in (("plain", False), ("scaled", True)):
        mean, variance = predicted_moments(256, 0.5, 1.0, scaled=scaled)
        assert float(numbers[f"law.{side}.mean.predicted"][0]) == mean
        assert float(numbers[f"law.{side}.variance.predicted"][0]) == variance
        sizes = SoftmaxDraws(7, 400, 0).sizes(256, scaled=scaled, mean=0.5, sigma=1.0).quantiles()
        for name, quantiles in sizes.items():
            found = [float(numbers[f"sizes.{side}.{name}.{place}"][0]) for place in range(3)]
            assert found == pytest.approx(quantiles, rel=1e-9)
    assert numbers["law.plain.variance.predicted"][1] == "384"


def test_lines_and_numbers_light_each_other_by_pointer(opened):
    page = opened("scale", samples=1000)
    page.locator("#why-scores-1 li").nth(1).hover()
    assert lit(page) == {"law-plain-variance", "why-scores-1 law-plain-variance"}
    page.locator("#sizes-jacobian").hover()
    lines = page.locator("#why-softmax-1 li.lit")
    assert lines.count() == page.locator("#why-softmax-1 li").count()
    page.locator("h1").hover()
    assert lit(page) == set()
    page.locator("#why-scores-0 a").first.click()
    assert page.evaluate("document.activeElement.id") == "law-plain-mean"
    assert "#" not in page.url


def test_lines_and_numbers_light_each_other_by_keys(opened):
    page = opened("scale", samples=1000)
    page.locator("#law-plain-mean").focus()
    assert "law-plain-mean" in lit(page)
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.closest('ol').id") == "why-scores-0"
    page.keyboard.press("Tab")
    assert lit(page) == {"law-plain-mean", "why-scores-0 law-plain-mean"}
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "law-plain-mean"


def test_what_is_looked_at_and_swept_can_be_chosen_by_keys(opened, ready):
    page = opened("scale", samples=1000)
    page.locator("[data-set='sweep=gradient']").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("[data-set='sweep=gradient'][aria-pressed=true]")
    assert "sweep=gradient" in page.url
    assert page.evaluate("document.activeElement.dataset.set") == "sweep=gradient"
    page.locator("#f-scaled").focus()
    page.keyboard.press("ArrowDown")
    page.wait_for_function("() => document.querySelector('tbody.scale-looked').textContent.includes('q·k/√d')")
    ready(page)


def test_a_larger_d_widens_one_law_and_not_the_other_on_one_axis(opened, edit):
    page = opened("scale", d=16, samples=1000)

    def widths() -> list[float]:
        return (
            page.locator(".scale-first figure")
            .first.locator(".qkv-series")
            .evaluate_all("all => all.map(each => each.getBBox().width)")
        )

    before = widths()
    page.locator("#r-d").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.wait_for_function("() => document.querySelector('[name=d]').value === '64'")
    page.wait_for_function("() => document.querySelector('[data-path=\"law.plain.deviation\"]').value === '8.0'")
    after = widths()
    assert after[0] == pytest.approx(2 * before[0], rel=0.1)
    assert after[1] == pytest.approx(before[1], rel=0.1)
    for side in ("plain", "scaled"):
        shares = page.locator(f"#result [data-path^='sizes.{side}.most']")
        assert shares.count() >= 4  # in the sentence, in the table of medians, and below

"""The report of a night in a real browser, without a network: `pytest -m browser`.

Needs the extra [browser] and Debian's chromium (apt-get install chromium); CHROMIUM names another one. Screenshots are
left in the test's folder, which `--basetemp` chooses.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from night_fixture import write_nights

from tuner.report.night_page import write_night
from tuner.report.night_report import night_report

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

#: Without them Chromium calls its maker's hosts at every start.
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
SIZES = {"desk": (1280, 900), "phone": (390, 844)}
CASES = [(size, scheme) for size in SIZES for scheme in ("light", "dark")]


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    nights = write_nights(tmp_path_factory.mktemp("reports"), (1.0, 1.02, 0.98, 1.6), ("0.32.0",) * 3 + ("0.33.0",))
    write_night(night_report(nights[-1]))
    return nights[-1] / "report.html"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    found = os.environ.get("CHROMIUM") or shutil.which("chromium")
    assert found, "no chromium: apt-get install chromium, or name one in CHROMIUM"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def opened(chromium: Any, page_file: Path, request: pytest.FixtureRequest) -> Iterator[tuple[Any, list[str]]]:
    """The page at a size and in a scheme, and everything that went wrong or was asked of a network."""
    size, scheme = getattr(request, "param", ("desk", "light"))
    width, height = SIZES[size]
    context = chromium.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    page, told = context.new_page(), []
    page.on("console", lambda message: told.append(f"console {message.type}: {message.text}"))
    page.on("pageerror", lambda error: told.append(f"error: {error}"))
    page.on("request", lambda asked: told.append(f"request: {asked.url}"))
    page.goto(page_file.as_uri())
    yield page, told
    assert told == [f"request: {page_file.as_uri()}"]
    context.close()


@pytest.mark.parametrize("opened", CASES, indirect=True, ids=["-".join(case) for case in CASES])
def test_it_fits_has_no_accessibility_fault_and_says_nothing_to_the_console(
    opened: tuple[Any, list[str]], tmp_path: Path
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    page, _ = opened
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true })")
    wide, seen = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    assert wide == seen  # tables scroll in their own frame, the page does not
    spilled = page.evaluate(
        "[...document.querySelectorAll('td, th')].filter((one) => one.scrollWidth > one.clientWidth + 1)"
        ".map((one) => one.textContent)"
    )
    assert spilled == []  # no text runs into the next cell
    smallest = page.evaluate(
        "Math.min(...[...document.querySelectorAll('svg.chart')].map((one) => 11 * one.clientWidth / 380))"
    )
    assert smallest >= 9  # CSS pixels of the smallest text in a plot
    page.screenshot(path=tmp_path / "report.png", full_page=True)
    found = Axe().run(page).response
    assert len(found["passes"]) > 30
    assert [(one["id"], one["impact"], one["nodes"][0]["html"]) for one in found["violations"]] == []


@pytest.mark.parametrize("opened", [("desk", "light"), ("desk", "dark")], indirect=True)
def test_plots_and_page_take_the_colours_of_the_scheme(opened: tuple[Any, list[str]]) -> None:
    page, _ = opened
    dark = page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    ink = page.evaluate("getComputedStyle(document.querySelector('.chart .name')).fill")
    off = page.evaluate("getComputedStyle(document.querySelector('.chart circle.s0')).fill")
    expected = ("rgb(20, 24, 29)", "rgb(230, 233, 237)") if dark else ("rgb(255, 255, 255)", "rgb(29, 35, 43)")
    assert (paper, ink) == expected
    assert off == expected[1]


def column(page: Any, caption: str, place: int) -> list[str]:
    found: list[str] = page.evaluate(
        "([caption, place]) => [...[...document.querySelectorAll('table')]"
        ".find((one) => one.caption.textContent.startsWith(caption)).tBodies[0].rows]"
        ".map((row) => row.cells[place].textContent.trim())",
        [caption, place],
    )
    return found


def head(page: Any, caption: str, name: str) -> Any:
    table = page.locator("table.sortable").filter(has=page.locator("caption", has_text=caption))
    return table.locator("thead th", has_text=name)


def test_tables_sort_by_keyboard_numbers_by_value_and_what_is_missing_last(opened: tuple[Any, list[str]]) -> None:
    page, _ = opened
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true })")
    caption = "TPOT, tau and speed-up by night"
    shown = column(page, caption, 5)
    taus = [float(text.split()[0]) for text in shown if text != "-"]
    assert shown.count("-") == 4  # off, four nights
    button = head(page, caption, "tau").locator("button")
    button.focus()
    page.keyboard.press("Enter")
    found = column(page, caption, 5)
    assert [float(text.split()[0]) for text in found[:-4]] == sorted(taus)
    assert found[-4:] == ["-"] * 4
    assert head(page, caption, "tau").get_attribute("aria-sort") == "ascending"
    page.keyboard.press("Space")
    found = column(page, caption, 5)
    assert [float(text.split()[0]) for text in found[:-4]] == sorted(taus, reverse=True)
    assert found[-4:] == ["-"] * 4
    assert head(page, caption, "tau").get_attribute("aria-sort") == "descending"
    assert page.locator("#sorted").inner_text().endswith("sorted by tau, tokens per verify step, descending")
    # one column at a time is the sorted one
    head(page, caption, "setting").locator("button").click()
    assert head(page, caption, "tau").get_attribute("aria-sort") is None
    assert column(page, caption, 3) == sorted(column(page, caption, 3))


def test_changes_sort_by_their_size_with_sign(opened: tuple[Any, list[str]]) -> None:
    page, _ = opened
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true })")
    caption = "Every figure that was compared"
    head(page, caption, "change").locator("button").click()
    found = [float(text.rstrip("%")) for text in column(page, caption, 4)]
    assert found == sorted(found)
    assert found[-1] > 5


def test_every_link_leads_to_a_place_on_the_page(opened: tuple[Any, list[str]]) -> None:
    page, told = opened
    links = page.locator("nav a")
    assert links.count() == 11
    for place in range(links.count()):
        name = links.nth(place).get_attribute("href").removeprefix("#")
        links.nth(place).click()
        assert page.evaluate("location.hash") == f"#{name}"
        assert page.locator(f"section#{name} h2").is_visible()
    # moving on the page is no request
    assert len(told) == 1


def test_without_scripts_everything_is_still_there(chromium: Any, page_file: Path) -> None:
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(page_file.as_uri())
    assert page.locator("table").count() == 13
    assert page.locator("svg.chart").count() == 6
    context.close()

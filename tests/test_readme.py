"""What the README says can be typed, and where it points."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tuner.cli import app

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCS = ["definitions", "planning", "theory", "training"]
PAGES = ["README.md", "ARCHITECTURE.md", "profiles/README.md", *(f"docs/{name}.md" for name in DOCS)]


def commands() -> set[str]:
    import typer.main

    return set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


def test_every_command_it_names_exists_and_every_command_is_named() -> None:
    named = set(re.findall(r"`tuner ([a-z]+)", README))
    assert named - commands() == set()
    assert commands() - named == set()


def test_its_two_commands_are_targets_of_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in ("demo", "test"):
        assert f"make {target}" in README
        assert re.search(rf"^{target}:", makefile, re.M)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", text):
        assert ((ROOT / page).parent / target).exists(), f"{page} points to {target}"


def test_its_result_is_measured_and_says_under_which_conditions() -> None:
    table = README.split("## Run it")[0]
    assert re.search(r"\d\.\d\dx \[\d\.\d\d, \d\.\d\d\], n = \d+", table), "a speed-up with its interval and n"
    for condition in ("vLLM 0.32", "SmolLM2-135M", "cores", "2026-"):
        assert condition in table

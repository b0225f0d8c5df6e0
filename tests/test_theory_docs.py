"""docs/theory.md says what the code says: its sessions, its tables, and every number in its prose."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from theory_support import OPTIMA, optima_rows, prose_figures

from tuner.cli import main

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "theory.md").read_text(encoding="utf-8")
SESSIONS = re.findall(r"^```console\n\$ tuner (.*)\n((?:.*\n)*?)```$", PAGE, flags=re.MULTILINE)

# Settings, not results: what was put in, sizes of the toy models, thresholds, and the data sheet's two figures.
SETTINGS = {
    *("0", "1", "2", "3", "4", "5", "10", "0.3", "0.5", "0.6", "0.7", "0.8", "0.9", "0.95", "0.02", "0.04", "0.05"),
    *("16", "95", "200", "2,500", "989.5", "3.35", "100"),
}
# Worked out in the tests named, on the very inputs the page gives.
ELSEWHERE = {
    "8": "test_theory_speedup.py::test_the_best_n",
    "15": "test_theory_speedup.py::test_the_best_n",
    "3.0921": "test_theory_speedup.py::test_the_best_n",
    "6": "test_theory_kv.py::test_a_accepts_all_and_b_rejects_after_two",
    "13": "test_theory_kv.py::test_a_accepts_all_and_b_rejects_after_two",
}


def prose() -> str:
    """The page without sessions, code, links, paper numbers and model names."""
    text = re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)
    text = re.sub(r"^    .*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"`[^`]*`", "", text)
    text = re.sub(r"\[[^\]]*\]\([^)]*\)", "", text)
    return re.sub(r"EAGLE-[23]|H100", "", text)


@pytest.mark.parametrize(("words", "expected"), SESSIONS, ids=[words for words, _ in SESSIONS])
def test_a_session_prints_what_the_page_shows(
    words: str, expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["tuner", *words.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert capsys.readouterr().out == expected


def test_every_command_has_a_session_or_is_a_table_elsewhere() -> None:
    shown = {words.split()[1] for words, _ in SESSIONS}
    assert shown == {"step", "verify", "speedup", "alpha", "load", "tree", "kv"}
    assert "`tuner theory grid`" in PAGE


def test_the_table_of_optima() -> None:
    start = PAGE.index("| alpha | c | best N |")
    table = PAGE[start:].split("\n\n")[0].splitlines()[2:]
    assert table == optima_rows()
    assert len(table) == len(OPTIMA)


def test_every_number_in_the_prose_comes_from_a_test() -> None:
    figures = prose_figures()
    for name, value in figures.items():
        assert re.search(rf"(?<![\d.]){re.escape(value)}(?![\d])", PAGE), f"{name} is {value}, and the page lacks it"
    from_figures = {number for value in figures.values() for number in numbers_in(value)}
    from_table = {number for row in optima_rows() for number in numbers_in(row)}
    unknown = set(numbers_in(prose())) - SETTINGS - set(ELSEWHERE) - from_figures - from_table
    assert not unknown


def numbers_in(text: str) -> list[str]:
    return re.findall(r"\d+(?:,\d{3})+|\d+(?:\.\d+)?", text)


@pytest.mark.parametrize("place", sorted(set(ELSEWHERE.values())))
def test_the_tests_named_exist(place: str) -> None:
    file, name = place.split("::")
    assert f"def {name}(" in (ROOT / "tests" / file).read_text(encoding="utf-8")


def test_every_exercise_names_a_command_and_tests_that_exist() -> None:
    rows = re.findall(r"^\| [^|]+ \| `tuner theory (\w+)` \| (.*) \|$", PAGE, flags=re.MULTILINE)
    assert [command for command, _ in rows] == ["step", "verify", "speedup", "grid", "alpha", "load", "tree", "kv"]
    for _, files in rows:
        for file in re.findall(r"`(\w+\.py)`", files):
            assert (ROOT / "tests" / file).is_file()

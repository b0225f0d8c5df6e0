"""Loops, junk and what only looks like them; cells that are made of it."""

from __future__ import annotations

import dataclasses

import pytest
from cells import cell, request
from hypothesis import given
from hypothesis import strategies as st

from tuner.measure.degenerate import degenerate, loop_at_end
from tuner.measure.records import Cell
from tuner.measure.validity import check_cell
from tuner.spec.speculation import OFF, SpecConfig

SENTENCE = "I am sorry, I do not know that. "
SOUND = (
    "Paris is the capital of France. It lies on the Seine, has some two million people within its walls, and has been "
    "the seat of kings, emperors and presidents; most visitors come for its museums, its bread and its evenings."
)
TABLE = "| a | b |\n|---|---|\n| 1 | 2 |\n| 3 | 4 |\n| 5 | 6 |\n| 7 | 8 |\n"
CODE = (
    "def f(x):\n    if x > 1:\n        return f(x - 1) + f(x - 2)\n    return x\n\nprint([f(i) for i in range(10)])\n"
)
EAGLE3 = SpecConfig("eagle3", n=2, draft="/d")


@pytest.mark.parametrize("text", ["", "Yes.", "no " * 5, SOUND, TABLE, CODE, SENTENCE * 3, "1, 2, 3, 4, 5, 6, 7, 8, 9"])
def test_text_that_may_be_meant(text: str) -> None:
    assert degenerate(text) is None


def test_a_sentence_over_and_over() -> None:
    # 31 characters without the last blank, the period is 32 with it.
    assert degenerate(SENTENCE * 6) == "a passage of 32 characters 5 times"
    assert degenerate("A start. " + SENTENCE * 6) is not None


def test_one_token_repeated() -> None:
    assert degenerate("The answer is" + " the" * 40) == "' the' over and over"
    assert degenerate("!" * 80) == "'!' over and over"


def test_a_loop_that_is_less_than_half_of_the_text_is_an_ending() -> None:
    assert degenerate(SOUND + " ha" * 25) is None  # 75 of 280 characters


def test_junk_characters() -> None:
    assert degenerate("abc \ufffd\ufffd def \ufffd\ufffd ghi") == "control or replacement characters"
    assert degenerate("a naïve 日本語 text with 😀 in it") is None


@given(st.text(alphabet="abcdefgh ", min_size=1, max_size=12), st.integers(8, 30), st.text(max_size=20))
def test_every_long_enough_loop_is_found(unit: str, times: int, start: str) -> None:
    text = start + unit * times
    if len(unit) * times < max(60, len(text) / 2):
        return
    found = loop_at_end(text)
    assert found is not None
    repeated, count = found
    assert text.endswith(repeated * count)
    assert count >= 4


def loops(share: float, of: int = 10) -> Cell:
    texts = [SENTENCE * 6 if i < share * of else SOUND for i in range(of)]
    return cell([dataclasses.replace(request(i, 0.01, accepted=[1, 0, 2], n=2), text=t) for i, t in enumerate(texts)])


def found(one: Cell, spec: SpecConfig) -> list[tuple[bool, str]]:
    return [(f.blocks, f.text) for f in check_cell(one, spec) if f.rule == "degenerate-text"]


def test_a_cell_of_loops_is_excluded_and_says_so() -> None:
    ((blocks, text),) = found(loops(0.5), EAGLE3)
    assert blocks
    assert text.startswith("5 of 10 answers are degenerate text (the first: a passage of 32 characters 5 times)")


def test_some_loops_are_said_and_few_are_not() -> None:
    assert [blocks for blocks, _ in found(loops(0.2), EAGLE3)] == [False]
    assert found(loops(0.0), EAGLE3) == []


def test_off_is_not_excluded_for_it_is_what_others_are_held_against() -> None:
    assert [blocks for blocks, _ in found(loops(1.0), OFF)] == [False]

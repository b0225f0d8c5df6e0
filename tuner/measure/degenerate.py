"""Text that no user wanted: loops, one token over and over, junk characters. Its acceptance is nobody's traffic."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence

from tuner.measure.finding import Finding
from tuner.measure.records import Cell, RequestRecord
from tuner.spec.speculation import SpecConfig

#: A text loops when its end repeats at least so often, over at least so many characters and this share of all of it.
REPEATS, LOOP_LENGTH, LOOP_SHARE = 4, 60, 0.5
#: A text is junk from this share of control and replacement characters on.
JUNK_SHARE, JUNK_LENGTH = 0.1, 16
#: From this share of a cell's answers on it is said; from that one the cell is no measurement of text.
SAID, EXCLUDED = 0.1, 0.5


def degenerate(text: str) -> str | None:
    """What is wrong with a text, in words; None for one that may be meant."""
    text = " ".join(text.split())
    if len(text) >= JUNK_LENGTH and sum(map(_is_junk, text)) >= JUNK_SHARE * len(text):
        return "control or replacement characters"
    found = loop_at_end(text)
    if found is None:
        return None
    unit, times = found
    return f"{unit[:24]!r} over and over" if len(unit) <= 24 else f"a passage of {len(unit)} characters {times} times"


def loop_at_end(text: str) -> tuple[str, int] | None:
    """(what repeats, how often) of the longest end of `text` that is periodic enough; None where there is none.

    Over the reversed text Knuth, Morris and Pratt's failure function gives every prefix's least period: length - fail.
    """
    reverse = text[::-1]
    fail = [0] * (len(reverse) + 1)
    best: tuple[str, int] | None = None
    matched = 0
    for length in range(2, len(reverse) + 1):
        letter = reverse[length - 1]
        while matched and reverse[matched] != letter:
            matched = fail[matched]
        matched += reverse[matched] == letter
        fail[length] = matched
        period = length - matched
        if length >= max(LOOP_LENGTH, REPEATS * period, LOOP_SHARE * len(text)):
            best = (text[len(text) - period :], length // period)
    return best


def degenerate_answers(requests: Sequence[RequestRecord]) -> tuple[tuple[RequestRecord, str], ...]:
    """Every answer that is degenerate, with what is wrong with it."""
    judged = ((request, degenerate(request.text)) for request in requests)
    return tuple((request, why) for request, why in judged if why is not None)


def degenerate_text(cell: Cell, spec: SpecConfig) -> Iterator[Finding]:
    """A cell of loops measures how well loops are predicted. Off stays, as what others are held against."""
    found = degenerate_answers(cell.completed)
    share = len(found) / len(cell.completed) if found else 0.0
    if share < SAID:
        return
    told = f"{len(found)} of {len(cell.completed)} answers are degenerate text (the first: {found[0][1]})"
    if share >= EXCLUDED and not spec.is_off:
        yield Finding(
            "degenerate-text", f"{told}: acceptance on it is not that of real answers; ask other prompts", blocks=True
        )
    else:
        yield Finding("degenerate-text", f"{told}: such text is easy to predict, which flatters speculation")


def _is_junk(letter: str) -> bool:
    return letter == "\ufffd" or unicodedata.category(letter) in ("Cc", "Co", "Cn")

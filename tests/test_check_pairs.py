"""Preflight on hand-written pairs: every field case of a wrong draft, every rule on formats, and valid pairs."""

from __future__ import annotations

from pathlib import Path

import pytest
from pairs import Pair, look, pairs

PAIRS = list(pairs())


def test_there_are_enough_pairs_and_a_third_is_valid() -> None:
    assert len(PAIRS) >= 60
    assert 3 * sum(pair.is_valid for pair in PAIRS) >= len(PAIRS)
    assert len({pair.name for pair in PAIRS}) == len(PAIRS)


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair.file}: {pair.name}")
def test_pair(pair: Pair, tmp_path: Path) -> None:
    """`expect` is ok (no error at all) or what must be found; `also` and `never` hold for both."""
    findings = look(pair, tmp_path)
    shown = "\n".join(f"{f.severity} {f.rule}: {f.message}" for f in findings)
    expected = pair.data["expect"]
    if pair.is_valid:
        assert not [f for f in findings if f.is_error], shown
        wanted = [] if expected == "ok" else [expected["ok"]]
    else:
        wanted = [expected]
        errors = {f.rule for f in findings if f.is_error}
        assert errors == {expected["rule"], *expected.get("with", ())}, shown
    for found in [*wanted, *pair.data.get("also", ())]:
        same = [f for f in findings if f.rule == found["rule"]]
        assert same, f"no {found['rule']} in\n{shown}"
        assert same[0].severity == found.get("severity", "error")
        for word in found.get("words", ()):
            assert word in same[0].message, f"{word!r} is not in: {same[0].message}"
    for rule in pair.data.get("never", ()):
        assert rule not in {f.rule for f in findings}, shown

"""Figures that cannot be block a cell; suspicious ones are said in words. Named after the field cases they guard."""

from __future__ import annotations

import dataclasses

from cells import cell, request
from test_counters import dump

from tuner.decide.evidence import gather
from tuner.measure.records import Cell, ClientHealth, SpecSteps, Trial
from tuner.measure.validity import check_cell
from tuner.spec.speculation import OFF, SpecConfig

E4 = SpecConfig("eagle3", n=4, draft="head")


def rules(one: Cell, spec: SpecConfig = E4) -> dict[str, bool]:
    return {finding.rule: finding.blocks for finding in check_cell(one, spec)}


def test_a_sound_cell_has_no_finding() -> None:
    assert rules(cell([request(i, 0.02, accepted=[2, 1, 0], n=4) for i in range(4)])) == {}
    assert rules(cell([request(0, 0.02)]), OFF) == {}


def test_s11_c01_acceptance_length_of_one_means_the_draft_does_not_work() -> None:
    # 5,000 drafting steps at K = 4, 48 accepted.
    requests = [request(i, 0.02, accepted=[0] * 500 if i else [1] * 48 + [0] * 452, n=4) for i in range(10)]
    (finding,) = check_cell(cell(requests), E4)
    assert finding.rule == "draft-not-working"
    assert "48 tokens accepted in 5000 drafting steps" in finding.text


def test_c12_medusa_heads_that_are_not_loaded_as_trained() -> None:
    # 161 drafting steps at K = 3, 0 of 483 accepted; below 100 steps nothing is said yet.
    spec = SpecConfig("medusa", n=3, draft="heads")
    (finding,) = check_cell(cell([request(i, 0.02, accepted=[0] * 23, n=3) for i in range(7)]), spec)
    assert finding.rule == "draft-not-working"
    assert "0 tokens accepted in 161 drafting steps" in finding.text
    assert "heads not loaded as trained" in finding.text
    assert rules(cell([request(i, 0.02, accepted=[0] * 33, n=3) for i in range(3)]), spec) == {}


def test_s12_everything_accepted_asks_to_read_the_text() -> None:
    assert "everything-accepted" in rules(cell([request(i, 0.02, accepted=[4] * 10, n=4) for i in range(4)]))


def test_more_accepted_than_drafted_blocks() -> None:
    broken = dataclasses.replace(request(0, 0.02, accepted=[2, 2], n=4), spec=SpecSteps((0, 0, 2, 0, 0), drafted=3))
    assert rules(cell([broken]))["accepted-over-drafted"]


def test_counters_that_disagree_with_the_records_block() -> None:
    requests = [request(i, 0.02, accepted=[2, 1, 0], n=4) for i in range(2)]  # 6 steps, 6 accepted
    zero = dump(0, 0, 0, [0, 0, 0, 0])
    agree = dataclasses.replace(cell(requests), counters_before=zero, counters_after=dump(6, 24, 6, [4, 2, 0, 0]))
    assert rules(agree) == {}
    other = dataclasses.replace(agree, counters_after=dump(60, 240, 60, [40, 20, 0, 0]))
    assert rules(other)["counters-disagree"]


def test_cancelled_requests_are_a_named_cause_of_a_difference() -> None:
    told = [request(i, 0.02, accepted=[2, 1, 0], n=4) for i in range(2)]
    cut = request(2, 0.02, tokens=9, phase="filler", error="cancelled")
    one = dataclasses.replace(
        cell([*told, cut]), counters_before=dump(0, 0, 0, [0] * 4), counters_after=dump(9, 36, 8, [5, 3, 0, 0])
    )
    assert rules(one) == {"counters-cancelled": False}


def test_m03_counters_that_went_backwards_block() -> None:
    one = dataclasses.replace(
        cell([request(0, 0.02, accepted=[2, 1], n=4)]), counters_before=dump(9, 36, 8, [8, 0, 0, 0]),
        counters_after=dump(2, 8, 3, [2, 1, 0, 0]),
    )  # fmt: skip
    assert rules(one)["counters"]


def test_a_slow_client_is_said() -> None:
    slow = ClientHealth(loop_lag_p99_s=0.2, send_lateness_p99_s=0.0, cpu_share=0.1)
    assert "client-limited" in rules(cell([request(0, 0.02)], health=slow), OFF)


def test_mostly_failed_cells_are_blocked_and_enter_no_ranking() -> None:
    bad = cell([request(0, 0.02), request(1, 0.02, error="HTTP 400: min_p"), request(2, 0.02, error="HTTP 400: min_p")])
    assert rules(bad, OFF)["failed-requests"]
    evidence = gather([Trial(1, OFF, "e", (bad,))], "tpot_p50")
    assert evidence.tried[0].cells == {}
    assert evidence.tried[0].findings[bad.key][0].rule == "failed-requests"

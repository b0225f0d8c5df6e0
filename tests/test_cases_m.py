"""Measurement mistakes from the field (M cases) that concern evidence and are not tested where their figure is made."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from cells import C1T0, cell, off_trial, request, spec_trial
from test_counters import dump

from tuner.decide.evidence import gather
from tuner.decide.rank import recommend
from tuner.decide.told import ToldRow
from tuner.decide.told_advice import advise
from tuner.decide.workload_rules import evidence_findings, workload_findings
from tuner.measure.acceptance import draft_rate_of
from tuner.measure.records import CellKey, Load, Trial
from tuner.measure.validity import check_cell
from tuner.spec.speculation import OFF, SpecConfig
from tuner.spec.workload import Workload

E4 = SpecConfig("eagle3", n=4, draft="head")
OFF_TPOTS = [0.100, 0.101, 0.099, 0.100, 0.102, 0.098, 0.100, 0.101]


def workload(**changed: object) -> Workload:
    base: dict[str, object] = {
        "name": "w",
        "model": "owner/Model-8B",
        "engine": "vllm",
        "traffic": {"concurrency": [1]},
    }
    return Workload.model_validate(base | changed)


def cached(queries: float, hits: float) -> str:
    return (
        "# TYPE vllm:prefix_cache_queries counter\n"
        f'vllm:prefix_cache_queries_total{{engine="0"}} {queries}\n'
        "# TYPE vllm:prefix_cache_hits counter\n"
        f'vllm:prefix_cache_hits_total{{engine="0"}} {hits}\n'
    )


def test_m05_the_logged_accept_rate_of_sglang_is_not_accepted_over_drafted() -> None:
    # sgl-project/sglang#11948: accept len 2.17, 1.95, 1.57 beside rates .54, .49, .39 with 3 steps.
    assert [round(draft_rate_of(tau, 3), 3) for tau in (2.17, 1.95, 1.57)] == [0.390, 0.317, 0.190]
    assert [round(tau / 4, 2) for tau in (2.17, 1.95, 1.57)] == [0.54, 0.49, 0.39]  # what is logged: tau / (n + 1)
    with pytest.raises(ValueError, match="outside"):
        draft_rate_of(4.2, 3)


def test_m11_forced_length_gives_no_acceptance_of_real_traffic() -> None:
    (finding,) = workload_findings(workload(sampling={"ignore_eos": True}))
    assert (finding.rule, finding.blocks) == ("forced-length", True)
    assert "only latency" in finding.text
    assert list(workload_findings(workload())) == []


def test_m13_a_warm_prefix_cache_is_told_from_one_percent_on() -> None:
    """Cell 1 hits 0 of 100,000, cell 2 hits 62,000 of 100,000."""
    one = cell([request(i, 0.02) for i in range(2)])
    cold = dataclasses.replace(one, counters_before=cached(0, 0), counters_after=cached(100_000, 0))
    warm = dataclasses.replace(one, counters_before=cached(100_000, 0), counters_after=cached(200_000, 62_000))
    slight = dataclasses.replace(one, counters_before=cached(0, 0), counters_after=cached(100_000, 999))
    assert check_cell(cold, OFF) == ()
    (finding,) = check_cell(warm, OFF)
    assert finding.rule == "prefix-cache-hits"
    assert finding.text.startswith("62% of the prompts' tokens")
    assert check_cell(slight, OFF) == ()


def test_m13_sglangs_warm_radix_cache_is_told_from_its_own_counters() -> None:
    """Recorded with the cache off: 178 prompt tokens, no cached_tokens (SGLang exports it from the first hit on)."""
    before = (Path(__file__).parent / "data" / "sglang-0.5.23" / "metrics-off.txt").read_text()
    # 172 -> 1172: 1,000 prompt tokens more, 620 of them cached, by source.
    after = before.replace('model_name="target"} 172.0', 'model_name="target"} 1172.0')
    labels = 'engine_type="unified",model_name="target"'
    hits = (
        "# HELP sglang:cached_tokens_total Number of cached prompt tokens by source (device/host/storage).\n"
        "# TYPE sglang:cached_tokens_total counter\n"
        f'sglang:cached_tokens_total{{cache_source="device",{labels}}} 600.0\n'
        f'sglang:cached_tokens_total{{cache_source="host",{labels}}} 20.0\n'
    )
    one = cell([request(i, 0.02) for i in range(2)])
    warm = dataclasses.replace(one, counters_before=before, counters_after=after + hits)
    (finding,) = check_cell(warm, OFF)
    assert (finding.rule, finding.text[:31]) == ("prefix-cache-hits", "62% of the prompts' tokens came")
    assert check_cell(dataclasses.replace(one, counters_before=before, counters_after=after), OFF) == ()
    assert check_cell(dataclasses.replace(warm, counters_before=before + hits), OFF) == ()


def test_m16_greedy_evidence_says_nothing_of_a_sampled_workload() -> None:
    told = gather([off_trial(OFF_TPOTS), spec_trial(E4, 0.1, [[2, 1, 1]] * 8)], "tpot_p50")
    (finding,) = evidence_findings(told, (0.0, 0.8))
    assert (finding.rule, finding.blocks) == ("other-temperature", True)
    assert finding.text.endswith("nothing is said of 0.8")


def test_m16_two_temperatures_are_two_verdicts_and_one_worst_case() -> None:
    # tau 2.19 at 1.30x and tau 1.55 at 0.95x: TPOT 100 ms off; 77 ms and 105 ms on.
    warm = CellKey(Load(concurrency=1), 1.0)
    on = (*spec_trial(E4, 0.231, [[2, 2, 2]] * 8).cells, *spec_trial(E4, 0.21, [[1, 1, 1]] * 8, key=warm).cells)
    trials = [
        Trial(1, OFF, "e", (*off_trial([0.1] * 8).cells, *off_trial([0.1] * 8, key=warm).cells)),
        Trial(2, E4, "e", on),
    ]
    told = recommend(gather(trials, "tpot_p50"))
    assert [v.on for v in told.verdicts] == [True, False]
    cold, hot = (next(c.ratio for c in v.comparisons if c.ratio) for v in told.verdicts)
    assert (round(cold.value, 2), round(hot.value, 2)) == (1.30, 0.95)
    assert told.overall.best == E4  # 1.30 x 0.95 > 1 on the average of the two
    assert told.overall.worst is not None
    assert told.overall.worst[0].temperature == 1.0
    assert told.overall.worst[1] == pytest.approx(0.952, abs=0.001)
    assert told.overall.worst_loss is not None
    assert told.overall.worst_loss[1] == pytest.approx(0.048, abs=0.001)  # 1 - 0.952 / 1


def test_m16_the_mix_decides_when_most_traffic_is_sampled() -> None:
    warm = CellKey(Load(concurrency=1), 1.0)
    on = (*spec_trial(E4, 0.231, [[2, 2, 2]] * 8).cells, *spec_trial(E4, 0.21, [[1, 1, 1]] * 8, key=warm).cells)
    trials = [
        Trial(1, OFF, "e", (*off_trial([0.1] * 8).cells, *off_trial([0.1] * 8, key=warm).cells)),
        Trial(2, E4, "e", on),
    ]
    # 1.30^.1 x .952^.9 = 0.982: off for all of it, at a regret of 1.30^.1 - 1 = 2.6 %.
    told = recommend(gather(trials, "tpot_p50", weights={C1T0: 1, warm: 9}))
    assert told.overall.best.is_off
    assert told.overall.regret == pytest.approx(1.2987**0.1 - 1, abs=0.0005)


def test_m22_raw_prompts_to_an_instruct_model_are_warned_of() -> None:
    raw = {"concurrency": [1], "endpoint": "completions"}
    for name in ("owner/Model-8B-Instruct", "gemma-3-4b-it", "owner/Llama-2-7b-chat-hf"):
        (finding,) = workload_findings(workload(model=name, traffic=raw))
        assert finding.rule == "no-chat-template"
        assert list(workload_findings(workload(model=name))) == []
    assert list(workload_findings(workload(model="owner/Base-8B", traffic=raw))) == []


def test_m17_ratios_are_of_one_head_on_one_path() -> None:
    """Records of two heads are two settings: each has its own ratio to off, and none to the other's baseline."""
    other = dataclasses.replace(E4, draft="another")
    told = gather([off_trial(OFF_TPOTS), spec_trial(E4, 0.1, [[2, 1]] * 8), spec_trial(other, 0.2, [[2, 1]] * 8, 3)],
                  "tpot_p50")  # fmt: skip
    ratios = {c.spec.draft: c.ratio for c in recommend(told).verdicts[0].comparisons if c.ratio}
    assert set(ratios) == {"head", "another"}
    assert ratios["head"].value == pytest.approx(2 * ratios["another"].value)


def test_m17_two_files_of_different_heads_give_no_ratio() -> None:
    """vllm-project/vllm#17202: an EAGLE-3 figure taken offline beside an EAGLE-1 figure over HTTP is no comparison."""
    told = [
        ToldRow("offline.csv:1", "eagle3", n=2, draft="eagle3-head", tpot_ms=4.54),
        ToldRow("served.csv:1", "eagle", n=2, draft="eagle1-head", tpot_ms=6.57),
    ]
    advice = advise(told)
    assert advice.verdict == "undecided"
    assert [one.gain for one in advice.cells] == [None]
    assert any("off was not measured" in reason for reason in advice.reasons)


def test_counters_without_a_prefix_cache_say_nothing_of_it() -> None:
    one = dataclasses.replace(
        cell([request(0, 0.02, accepted=[2, 1], n=4)]),
        counters_before=dump(0, 0, 0, [0, 0, 0, 0]),
        counters_after=dump(2, 8, 3, [2, 1, 0, 0]),
    )
    assert check_cell(one, E4) == ()

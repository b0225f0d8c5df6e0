"""Acceptance from Prometheus dumps; the M and T cases are published or field figures, recomputed by hand."""

from __future__ import annotations

import pytest

from tuner.errors import UserError
from tuner.measure.counters import counter_delta
from tuner.report.acceptance_text import acceptance_text


def dump(drafts: float, drafted: float, accepted: float, positions: list[float], engine: str = "0") -> str:
    labels = f'engine="{engine}",model_name="m"'
    lines = [
        "# TYPE vllm:spec_decode_num_drafts counter",
        f"vllm:spec_decode_num_drafts_total{{{labels}}} {drafts}",
        f"vllm:spec_decode_num_drafts_created{{{labels}}} 1.7e9",
        f"vllm:spec_decode_num_draft_tokens_total{{{labels}}} {drafted}",
        f"vllm:spec_decode_num_accepted_tokens_total{{{labels}}} {accepted}",
    ]
    for i, value in enumerate(positions):
        lines.append(f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{labels},position="{i}"}} {value}')
    return "\n".join(lines) + "\n"


def test_m03_counters_that_go_on_from_the_last_run_use_the_difference() -> None:
    before = dump(1000, 5000, 3000, [900, 750, 600, 450, 300])
    after = dump(1500, 7500, 3500, [1150, 900, 675, 475, 300])
    counts = counter_delta(before, after).counts
    assert counts is not None
    assert counts.draft_acceptance_rate == 0.20  # 500 / 2500; the lifetime's 46.7 % would be 3500 / 7500
    assert counts.tau == 2.00  # 1 + 500 / 500
    assert counts.a == (0.50, 0.30, 0.15, 0.05, 0.00)
    # 500 accepted; 500 steps, none accepted all five: 500 / (500 + 500)
    assert counts.alpha == 0.5


def test_m03_restart_between_the_dumps_is_refused() -> None:
    delta = counter_delta(dump(1000, 5000, 3000, [3000, 0, 0, 0, 0]), dump(10, 50, 3, [3, 0, 0, 0, 0]))
    assert delta.counts is None
    assert "went backwards" in delta.reasons[0]


def test_m03_counters_that_vanish_are_named() -> None:
    after = "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 0\n"
    delta = counter_delta(dump(1, 5, 3, [3, 0, 0, 0, 0]), after)
    assert delta.counts is None
    assert "vanished" in delta.reasons[0]


def test_c21_speculator_served_as_an_ordinary_model_is_not_active() -> None:
    text = "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 0\n"
    delta = counter_delta(text, text)
    assert delta.counts is None
    assert "speculation is not active" in delta.reasons[0]


def test_no_drafts_is_undefined_and_not_zero() -> None:
    text = dump(7, 21, 5, [3, 1, 1])
    delta = counter_delta(text, text)
    assert delta.counts is None
    assert "no drafts" in delta.reasons[0]


def test_alpha_is_censored_where_all_were_accepted() -> None:
    # 10 steps of 3: 4 accept all 3, 6 accept none. accepted 12; rejected 6; alpha = 12 / 18, not 12 / 30.
    counts = counter_delta(dump(0, 0, 0, [0, 0, 0]), dump(10, 30, 12, [4, 4, 4])).counts
    assert counts is not None
    assert counts.alpha == pytest.approx(2 / 3)
    assert counts.draft_acceptance_rate == pytest.approx(0.4)
    assert counts.alpha_by_position == (0.4, 1.0, 1.0)


def test_p02_one_position_of_six_is_not_printed() -> None:
    # vllm-project/vllm#24243 (MiniCPM3, EAGLE-3): counts as published; five positions, rounded to 1 %, for six drafted.
    drafts, drafted, accepted = 43221, 259326, 63669
    positions = [round(share * drafts) for share in (0.58, 0.34, 0.22, 0.15, 0.11)]
    delta = counter_delta(dump(0, 0, 0, [0] * 5), dump(drafts, drafted, accepted, positions))
    counts = delta.counts
    assert counts is not None
    assert counts.n == 6
    assert counts.a is not None
    assert counts.a[5] == pytest.approx(0.073, abs=1e-3)  # 63669 / 43221 - 1.40
    assert counts.tau == pytest.approx(2.473, abs=5e-4)
    assert counts.draft_acceptance_rate == pytest.approx(0.2455, abs=5e-5)
    assert "5 positions are printed but 6 tokens are drafted" in delta.reasons[0]


def test_p07_acceptance_length_and_n_from_published_counts() -> None:
    # vllm-project/vllm#48892, MTP8: 839,040 drafted at N = 8 is 104,880 drafts; 356,839 accepted.
    drafts = 839040 // 8
    shares = (0.7568, 0.6011, 0.4976, 0.4113, 0.3538, 0.2980, 0.2608)
    reached = [round(share * drafts) for share in shares]
    reached.append(356839 - sum(reached))  # the last from the total: rounded shares do not add up exactly
    counts = counter_delta(dump(0, 0, 0, [0] * 8), dump(drafts, 839040, 356839, reached)).counts
    assert counts is not None
    assert counts.tau == pytest.approx(4.402, abs=5e-4)
    assert counts.draft_acceptance_rate == pytest.approx(0.4253, abs=5e-5)
    assert counts.a is not None
    assert counts.a[7] == pytest.approx(0.2229, abs=5e-4)


def test_positions_that_do_not_add_up_are_no_figure() -> None:
    delta = counter_delta(dump(0, 0, 0, [0, 0]), dump(100, 200, 90, [60, 20]))
    assert delta.counts is None
    assert "add up to 80 but 90" in delta.reasons[0]


def test_more_accepted_than_drafted_is_no_figure() -> None:
    assert counter_delta(dump(0, 0, 0, [0]), dump(10, 10, 20, [20])).counts is None


def test_data_parallel_ranks_are_summed() -> None:
    two = dump(10, 20, 8, [6, 2]) + dump(30, 60, 24, [18, 6], engine="1")
    counts = counter_delta(dump(0, 0, 0, [0, 0]), two).counts
    assert counts is not None
    assert (counts.drafting_steps, counts.accepted, counts.reached) == (40, 32, (24, 8))


def test_steps_of_different_length_say_that_alpha_is_a_bound() -> None:
    delta = counter_delta(dump(0, 0, 0, [0, 0, 0]), dump(10, 25, 12, [6, 4, 2]))
    assert any("lower bound" in reason for reason in delta.reasons)


def test_m05_sglang_counters_give_tau_and_no_alpha() -> None:
    def text(steps: int, tokens: int, requests: int) -> str:
        return (
            f'# TYPE sglang:spec_verify_calls_total counter\nsglang:spec_verify_calls_total{{tp_rank="0"}} {steps}\n'
            f"# TYPE sglang:generation_tokens_total counter\nsglang:generation_tokens_total {tokens}\n"
            f"# TYPE sglang:num_requests_total counter\nsglang:num_requests_total {requests}\n"
        )

    delta = counter_delta(text(100, 300, 10), text(300, 750, 20))
    assert delta.tau_only == pytest.approx(2.2)  # (450 - 10) / 200
    assert delta.counts is None


def test_text_that_is_not_prometheus_is_one_sentence() -> None:
    with pytest.raises(UserError, match="not in Prometheus' format"):
        counter_delta("<html>login</html>", "{}")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("place", ["drafts", "drafted", "accepted", "position"])
def test_a_counter_that_is_no_count_is_no_figure(place: str, value: float) -> None:
    sound = {"drafts": 10, "drafted": 20, "accepted": 8, "position": 6}
    told = sound | {place: value}
    last = dump(told["drafts"], told["drafted"], told["accepted"], [told["position"], 2])
    for before, after in ((dump(0, 0, 0, [0, 0]), last), (last, dump(20, 40, 16, [12, 4]))):
        delta = counter_delta(before, after)
        assert delta.counts is None
        assert delta.reasons == ("a counter of speculation is NaN or infinite, and no count: take the dumps again",)
        assert "undefined" in acceptance_text(delta)


def test_another_metric_that_is_nan_spoils_no_figure() -> None:
    """Engines export NaN for summaries that are empty so far."""
    idle = "# TYPE vllm:some_gauge gauge\nvllm:some_gauge NaN\n"
    counts = counter_delta(idle + dump(0, 0, 0, [0, 0]), idle + dump(10, 20, 8, [6, 2])).counts
    assert counts is not None
    assert counts.tau == 1.8  # 1 + 8 / 10


def test_sglang_counters_that_are_nan_give_no_tau() -> None:
    text = "# TYPE sglang:spec_verify_calls_total counter\nsglang:spec_verify_calls_total {}\n"
    delta = counter_delta(text.format("0"), text.format("NaN"))
    assert (delta.counts, delta.tau_only) == (None, None)
    assert "NaN or infinite" in delta.reasons[0]


@pytest.mark.parametrize(
    ("label", "shown"), [('position="last"', "'last'"), ('place="0"', "''"), ('position="-1"', "'-1'")]
)
def test_a_position_that_is_no_number_is_no_figure(label: str, shown: str) -> None:
    strange = f"vllm:spec_decode_num_accepted_tokens_per_pos_total{{{label}}} 6\n"
    delta = counter_delta(dump(0, 0, 0, []), dump(10, 20, 8, []) + strange)
    assert delta.counts is None
    assert delta.reasons == (
        f"a per-position counter has the position {shown}, which is no number: a_k cannot be told from it",
    )


def test_c12_nothing_accepted_says_that_heads_are_not_loaded_as_trained() -> None:
    # 161 drafts of three tokens each: 483 drafted, 0 accepted.
    delta = counter_delta(dump(0, 0, 0, [0, 0, 0]), dump(161, 483, 0, [0, 0, 0]))
    assert delta.counts is not None
    assert (delta.counts.tau, delta.counts.alpha, delta.counts.n) == (1.0, 0.0, 3)
    sentence = (
        "0 tokens accepted in 161 drafting steps: the draft does not work with this target (wrong head or method, "
        "heads not loaded as trained, a vocabulary map, missing weights, or no chat template)"
    )
    assert delta.reasons == (sentence,)
    assert acceptance_text(delta).endswith(f"note: {sentence}")


def test_c26_a_drafter_that_never_stops_shows_in_its_draft_acceptance_rate() -> None:
    """ggml-org/llama.cpp#25908: up to 64 tokens a step and no p_min, 96 of 1378 accepted: 0.070.

    21 steps of 64 and one of 34 are 1378. What is accepted is accepted early, so tau alone does not look bad.
    """
    reached = [22, 20, 16, 12, 10, 8, 5, 3] + [0] * 56  # 96
    counts = counter_delta(dump(0, 0, 0, [0] * 64), dump(22, 1378, 96, reached)).counts
    assert counts is not None
    assert counts.draft_acceptance_rate == pytest.approx(0.0697, abs=5e-5)
    assert counts.tau == pytest.approx(5.364, abs=5e-4)  # 1 + 96 / 22
    assert counts.alpha == pytest.approx(96 / 118)  # 22 steps, each rejected once: 96 + 22
    assert counts.dead is None


@pytest.mark.parametrize(
    ("drafts", "accepted", "dead"),
    [(99, 0, False), (100, 0, True), (100, 1, False), (199, 1, False), (200, 4, True), (200, 5, False)],
)
def test_how_little_over_how_many_steps_is_a_draft_that_does_not_work(drafts: int, accepted: int, dead: bool) -> None:
    # 4 of 200 is tau 1.02; 5 of 200 is 1.025.
    counts = counter_delta(dump(0, 0, 0, [0]), dump(drafts, drafts, accepted, [accepted])).counts
    assert counts is not None
    assert (counts.dead is not None) is dead

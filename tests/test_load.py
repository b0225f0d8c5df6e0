"""Cells of load against the mock engine: order, phases, window, drain, counters, deaths and interruption."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from mock_engine import Config, Faults, MockEngine, Sim, Speculation, mock_engine

from tuner.measure.records import Cell, CellKey, Load, SpecSteps, request_from_dict, request_to_dict
from tuner.prompts.rows import Prompt
from tuner.run import load as load_module
from tuner.run.arrivals import poisson_arrivals
from tuner.run.cell_plan import request_body, request_seed
from tuner.run.health import watch_loop
from tuner.run.load import CellAborted, CellPlan, Server, measure_cell
from tuner.run.scrape import requests_in_flight, scrape, wait_until_idle
from tuner.run.stream import open_session, send

FAST = Sim(base_s=0.002, prefill_s=0.001, alpha={"*": {"0": [0.8, 0.6, 0.5], "1": [0.5, 0.4, 0.3]}})
EAGLE3 = Config(spec=Speculation("eagle3", 3, 3), sim=FAST, metrics_level="detailed")


def prompts(count: int, max_tokens: Mapping[int, int] | None = None) -> tuple[Prompt, ...]:
    return tuple(
        Prompt(f"p{i}", "chat", "fa" if i % 2 else None, (("user", f"question {i}"),), (max_tokens or {}).get(i))
        for i in range(count)
    )


def plan(**changes: Any) -> CellPlan:
    load = Load(concurrency=changes.pop("concurrency", None), rate=changes.pop("rate", None))
    load = load if load.concurrency or load.rate else Load(concurrency=3)
    usual = CellPlan(
        key=CellKey(load, changes.pop("temperature", 0.0)), prompts=prompts(12), warmup=4, measured=8,
        max_output_tokens=12, sampling={}, endpoint="chat", chat_template_kwargs={}, extras={}, seed=0, timeout_s=30.0,
    )  # fmt: skip
    return replace(usual, **changes)


def vllm_steps(events: Sequence[Mapping[str, Any]]) -> SpecSteps | None:
    told = events[-1].get("metrics", {}).get("speculative_decoding") if events else None
    if told is None:
        return None
    return SpecSteps(tuple(told["acceptance_histogram"]), told["num_draft_tokens"], tuple(told["per_step_accepted"]))


async def run_cell(engine: MockEngine, cell: CellPlan, **more: Any) -> Cell:
    server = Server(engine.url, None, engine.config.served_name)
    return await measure_cell(server, cell, more.pop("read_spec", vllm_steps), **more)


def measure(config: Config, cell: CellPlan, **more: Any) -> tuple[Cell, MockEngine]:
    async def run() -> tuple[Cell, MockEngine]:
        async with mock_engine(config) as engine:
            return await run_cell(engine, cell, **more), engine

    return asyncio.run(run())


def aborted(config: Config, cell: CellPlan) -> tuple[str, Cell, MockEngine]:
    async def run() -> tuple[str, Cell, MockEngine]:
        async with mock_engine(config) as engine:
            with pytest.raises(CellAborted) as caught:
                await run_cell(engine, cell)
            return str(caught.value), caught.value.cell, engine

    return asyncio.run(run())


def counter(text: str | None, name: str) -> float:
    lines = [line for line in (text or "").splitlines() if line.startswith(name)]
    assert lines, f"no {name}"
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def delta(cell: Cell, name: str) -> float:
    return counter(cell.counters_after, name) - counter(cell.counters_before, name)


@pytest.mark.parametrize("concurrency", [1, 3, 5])
def test_which_prompt_is_measured_never_depends_on_who_is_free(concurrency: int) -> None:
    cell, _ = measure(EAGLE3, plan(concurrency=concurrency))
    by_phase = {phase: [r for r in cell.requests if r.phase == phase] for phase in ("warmup", "measured", "filler")}
    assert [r.prompt for r in by_phase["warmup"]] == ["p0", "p1", "p2", "p3"]
    assert [r.prompt for r in by_phase["measured"]] == [f"p{i}" for i in range(4, 12)]
    assert [r.index for r in cell.requests] == list(range(len(cell.requests)))
    # fillers wrap around; a worker is never without a request while others still measure
    assert [r.prompt for r in by_phase["filler"]] == [f"p{r.index % 12}" for r in by_phase["filler"]]
    assert all(r.ok for r in cell.measured)
    assert [r.language for r in cell.requests[:2]] == ["und", "fa"]


def test_the_load_is_full_from_the_first_measured_send_to_the_last_measured_end() -> None:
    # one measured answer is 10 times as long as the others: without fillers it would end alone
    lengths = dict.fromkeys(range(12), 8) | {5: 80}
    cell, _ = measure(EAGLE3, plan(prompts=prompts(12, lengths), concurrency=4, max_output_tokens=80))
    start_s, end_s = cell.window_s
    assert start_s == min(r.sent_s for r in cell.measured)
    assert end_s == max(r.sent_s + r.ended_s for r in cell.measured)
    overlaps = [max(0.0, min(end_s, r.sent_s + r.ended_s) - max(start_s, r.sent_s)) for r in cell.requests]
    assert 0.8 * 4 < sum(overlaps) / (end_s - start_s) <= 4.001
    long = next(r for r in cell.measured if r.prompt == "p5")
    assert long.sent_s + long.ended_s == end_s
    fillers = [r for r in cell.requests if r.phase == "filler"]
    assert any(r.ok for r in fillers)
    assert [r.error for r in fillers if not r.ok] == ["cancelled"] * len([r for r in fillers if not r.ok])


def test_cancelled_fillers_keep_what_arrived_and_are_aborted_in_the_server() -> None:
    cell, engine = measure(EAGLE3, plan(prompts=prompts(40), measured=6, concurrency=5, max_output_tokens=60))
    cut = [r for r in cell.requests if r.error == "cancelled"]
    assert len(cut) == 4  # all workers but the one whose request was the last measured
    assert all(r.phase == "filler" for r in cut)
    assert engine.machine.counters.aborted == 4
    assert engine.machine.running == []
    truths = {job.prompt: job for job in engine.machine.jobs}
    for r in cut:
        n_sent = [n for _, n in truths[f"question {r.prompt[1:]}"].sent]
        assert r.n_out == (r.chunks[-1][1] if r.chunks else 0)
        assert all(n in n_sent for _, n in r.chunks)


def test_counters_cover_all_requests_of_the_cell_fillers_included() -> None:
    cell, engine = measure(EAGLE3, plan(measured=6, concurrency=5, max_output_tokens=40))
    truths = [job.truth() for job in engine.machine.jobs]
    assert len(truths) == len(cell.requests)
    assert delta(cell, "vllm:spec_decode_num_drafts_total") == sum(len(t["accepted"]) for t in truths)
    assert delta(cell, "vllm:spec_decode_num_accepted_tokens_total") == sum(sum(t["accepted"]) for t in truths)
    assert delta(cell, "vllm:generation_tokens_total") == sum(t["n_out"] for t in truths)


def test_with_fillers_finished_records_and_counters_agree_exactly() -> None:
    cell, engine = measure(EAGLE3, plan(measured=6, concurrency=5, cancel_fillers=False))
    assert all(r.ok for r in cell.requests)
    spec = [r.spec for r in cell.requests if r.spec is not None]
    assert len(spec) == len(cell.requests)
    assert delta(cell, "vllm:spec_decode_num_drafts_total") == sum(s.drafting_steps for s in spec)
    assert delta(cell, "vllm:spec_decode_num_draft_tokens_total") == sum(s.drafted or 0 for s in spec)
    assert delta(cell, "vllm:spec_decode_num_accepted_tokens_total") == sum(s.accepted for s in spec)
    assert delta(cell, "vllm:generation_tokens_total") == sum(r.n_out for r in cell.requests)
    assert engine.machine.counters.aborted == 0


def test_m03_counters_of_an_earlier_cell_stay_out() -> None:
    async def run() -> tuple[Cell, Cell]:
        async with mock_engine(EAGLE3) as engine:
            return await run_cell(engine, plan()), await run_cell(engine, plan(cancel_fillers=False))

    earlier, later = asyncio.run(run())
    name = "vllm:spec_decode_num_drafts_total"
    assert counter(later.counters_before, name) == counter(earlier.counters_after, name) > 0
    assert delta(later, name) == sum(r.spec.drafting_steps for r in later.requests if r.spec)


def test_m13_repeated_prompts_show_in_the_prefix_cache_counters() -> None:
    async def run(caching: bool) -> tuple[float, float]:
        async with mock_engine(replace(EAGLE3, prefix_caching=caching)) as engine:
            await run_cell(engine, plan(cancel_fillers=False))
            again = await run_cell(engine, plan(cancel_fillers=False))
            return delta(again, "vllm:prefix_cache_queries_total"), delta(again, "vllm:prefix_cache_hits_total")

    queries, hits = asyncio.run(run(True))
    assert hits == queries > 0
    assert asyncio.run(run(False))[1] == 0


def test_tokens_times_and_gaps_against_the_servers_own_record() -> None:
    cell, engine = measure(EAGLE3, plan(concurrency=2, max_output_tokens=30))
    truths = {job.prompt: job.truth() for job in engine.machine.jobs[: 4 + 8]}
    for r in cell.measured:
        truth = truths[f"question {r.prompt[1:]}"]
        assert (r.n_out, r.text, r.n_in) == (30, truth["text"], truth["n_in"])
        assert r.spec is not None
        assert r.spec.accepted_by_step == tuple(truth["accepted"])
        sent = {n: sent_s for sent_s, n in truth["sent"]}
        assert all(n in sent for _, n in r.chunks)
        served_s = sent[r.chunks[-1][1]] - sent[r.chunks[0][1]]
        assert 0.5 < (r.chunks[-1][0] - r.chunks[0][0]) / served_s < 2.0


def test_sglang_details_reach_the_adapter_before_done() -> None:
    seen: list[Mapping[str, Any]] = []

    def read(events: Sequence[Mapping[str, Any]]) -> SpecSteps | None:
        details = next(e["sglext"]["spec_tokens_details"] for e in events if "sglext" in e)
        seen.append(details)
        return SpecSteps(tuple(details["spec_correct_drafts_histogram"]), verify_steps=details["spec_verify_ct"])

    config = replace(EAGLE3, flavour="sglang")
    cell, _ = measure(config, plan(extras={"return_spec_tokens_details": True}, cancel_fillers=False), read_spec=read)
    assert len(seen) == len(cell.requests)
    steps = sum(r.spec.verify_steps or 0 for r in cell.requests if r.spec)
    assert delta(cell, "sglang:spec_verify_calls_total") == steps
    assert delta(cell, "sglang:generation_tokens_total") == sum(r.n_out for r in cell.requests)


def test_progress_counts_measured_requests() -> None:
    seen: list[tuple[int, int]] = []
    measure(EAGLE3, plan(), on_progress=lambda done, total: seen.append((done, total)))
    assert seen == [(i, 8) for i in range(1, 9)]


def test_records_survive_their_json() -> None:
    cell, _ = measure(EAGLE3, plan())
    again = [request_from_dict(request_to_dict(r)) for r in cell.requests]
    assert [(r.n_out, r.finish, r.error, r.text) for r in again] == [
        (r.n_out, r.finish, r.error, r.text) for r in cell.requests
    ]


def test_bodies_are_what_the_plan_says() -> None:
    prompt = Prompt(
        "a",
        "chat",
        "en",
        (("system", "s"), ("user", "u")),
        500,
        (("temperature", 0.9), ("top_p", 0.5), ("stop", ["x"])),
    )
    cell = plan(
        temperature=1.0, prompts=(prompt,), sampling={"temperature": 1.0, "top_p": 0.8, "top_k": 20},
        chat_template_kwargs={"enable_thinking": False}, extras={"return_spec_tokens_details": True},
    )  # fmt: skip
    assert request_body(cell, prompt) == {
        "max_tokens": 12,  # the prompt wants 500, the cell allows 12
        "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}],
        "chat_template_kwargs": {"enable_thinking": False},
        "temperature": 1.0,  # the cell's: it is what the cell measures
        "top_p": 0.5,  # the prompt's own
        "top_k": 20,
        "stop": ["x"],
        "seed": request_seed(0, "a"),
        "return_spec_tokens_details": True,
    }
    plain = request_body(replace(cell, endpoint="completions", send_seed=False), prompt)
    assert plain["prompt"] == "s\n\nu"
    assert {"messages", "chat_template_kwargs", "seed"}.isdisjoint(plain)
    shorter = replace(prompt, max_tokens=5)
    assert request_body(cell, shorter)["max_tokens"] == 5


def test_a_seed_belongs_to_its_prompt_and_study() -> None:
    # `printf 0:p0 | sha256sum` begins c7d9b3a0; without the sign bit
    assert request_seed(0, "p0") == 0xC7D9B3A0 & 0x7FFFFFFF
    assert len({request_seed(s, f"p{i}") for s in range(5) for i in range(100)}) == 500
    assert all(0 <= request_seed(s, "x") < 2**31 for s in range(200))
    assert "seed" not in request_body(plan(temperature=0.0), prompts(1)[0])


def test_sampled_cells_repeat_with_their_seeds() -> None:
    texts = [[r.text for r in measure(EAGLE3, plan(temperature=1.0, concurrency=c))[0].measured] for c in (2, 4)]
    assert texts[0] == texts[1]
    unseeded = [r.text for r in measure(EAGLE3, plan(temperature=1.0, send_seed=False))[0].measured]
    assert unseeded != texts[0]


def test_open_loop_keeps_its_schedule_and_never_limits_connections() -> None:
    config = replace(EAGLE3, max_running=2)
    cell, _ = measure(config, plan(rate=150.0, measured=20, prompts=prompts(24), max_output_tokens=30))
    schedule = list(itertools.islice(poisson_arrivals(150.0, 0), len(cell.requests)))
    assert [r.scheduled_s for r in cell.requests] == pytest.approx(schedule)
    assert all(r.sent_s >= r.scheduled_s for r in cell.requests)
    assert [r.prompt for r in cell.requests[:24]] == [f"p{i}" for i in range(24)]
    assert all(r.ok for r in cell.measured)
    # arrivals went on while the server, two at a time, fell behind
    assert len(cell.requests) > 24
    last_sent_s = max(r.sent_s for r in cell.measured)
    unfinished = [r for r in cell.requests if r.sent_s <= last_sent_s < r.sent_s + r.ended_s]
    assert len(unfinished) > 2 + 2


def test_m14_waiting_in_the_server_is_part_of_the_latency(monkeypatch: pytest.MonkeyPatch) -> None:
    service_s = 0.2  # 1 prefill and 19 steps of 10 ms, one request at a time, five times as fast as served

    def regular(rate: float, seed: int) -> Iterator[float]:
        return (i * service_s / 5 for i in itertools.count())

    monkeypatch.setattr(load_module, "poisson_arrivals", regular)
    config = Config(max_running=1, sim=Sim(base_s=0.01, prefill_s=0.0))
    cell, engine = measure(config, plan(rate=1.0, warmup=0, measured=8, max_output_tokens=20))
    e2e_s = [r.e2e_s or 0.0 for r in cell.measured]
    assert e2e_s == sorted(e2e_s)
    # mean of 1 + 0.8 i over i = 0..7 is 3.8 service times; a slow box serves slower, which raises it towards 4.5
    assert sum(e2e_s) / 8 > 2.5 * e2e_s[0]
    assert max(r.lateness_s for r in cell.measured) < e2e_s[0]
    # what the server recorded: request 7 ended that long after request 0
    apart_s = engine.machine.jobs[7].sent[-1][0] - engine.machine.jobs[0].sent[-1][0]
    assert e2e_s[7] + 7 * service_s / 5 - e2e_s[0] == pytest.approx(apart_s, rel=0.1)


def test_open_loop_misses_its_deadline_and_says_so() -> None:
    config = Config(max_running=1, sim=Sim(base_s=0.01))
    cell, engine = measure(
        config, plan(rate=200.0, warmup=0, measured=20, timeout_s=0.5, max_output_tokens=20, prompts=prompts(40))
    )
    late = [r for r in cell.measured if r.error == "deadline"]
    assert len(cell.measured) == 20
    assert late
    assert len(late) + len(cell.completed) == 20
    assert {r.error for r in cell.requests if r.phase == "filler"} == {"cancelled"}
    assert engine.machine.running == []


@pytest.mark.timeout(60)
def test_an_open_loop_whose_last_filler_never_ends_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The 9th request, none of the measured ones, gets no answer: nothing but its own time-out can end the cell."""
    sent = 0

    async def send_but_the_ninth(*given: Any) -> None:
        nonlocal sent
        sent += 1
        await (asyncio.Event().wait() if sent == 9 else send(*given))

    monkeypatch.setattr(load_module, "send", send_but_the_ninth)
    slow = Sim(base_s=0.05)  # the measured ones take 1 s, the 9th comes within it
    cell, _ = measure(Config(sim=slow), plan(rate=100.0, warmup=0, measured=8, timeout_s=8.0, max_output_tokens=20))
    assert sent >= 9
    assert len(cell.completed) == 8


def test_failed_requests_are_rows_and_the_cell_goes_on() -> None:
    cell, _ = measure(replace(EAGLE3, faults=Faults(http_500_every=3)), plan(warmup=0, concurrency=2, measured=9))
    assert [r.error is None for r in cell.measured] == [True, True, False] * 3
    assert len(cell.completed) == 6


def test_an_unreachable_server_is_given_up_at_once() -> None:
    async def run() -> CellAborted:
        async with mock_engine() as engine:
            server = Server(engine.url, None, "mock-model")
        with pytest.raises(CellAborted) as caught:
            await measure_cell(server, plan(warmup=100, measured=100), vllm_steps)
        return caught.value

    error = asyncio.run(run())
    assert "the server is gone (connection refused" in str(error)
    assert 3 <= len(error.cell.requests) <= 5
    assert error.cell.counters_before is error.cell.counters_after is None
    assert error.exit_code == 3


def test_s13_what_was_measured_before_the_engine_died_is_kept() -> None:
    why, cell, _ = aborted(replace(EAGLE3, faults=Faults(die_at_request=9)), plan(concurrency=3, measured=100))
    assert "the server is gone" in why
    assert [r.index for r in cell.requests if r.ok] == list(range(len([r for r in cell.requests if r.ok])))
    assert 4 <= len([r for r in cell.requests if r.ok]) <= 8
    assert len([r for r in cell.requests if not r.ok]) <= 3 + 3 + 3
    assert cell.counters_before is not None
    assert cell.counters_after is None


def test_a_hanging_engine_is_given_up_after_one_round_of_timeouts() -> None:
    config = replace(EAGLE3, faults=Faults(hang_at_request=6))
    why, cell, _ = aborted(config, plan(concurrency=3, timeout_s=0.3, measured=100))
    assert "the server hangs (3 requests in a row: no complete answer within 0.3 s)" in why
    assert len(cell.requests) <= 5 + 3 + 3


def test_requests_that_all_fail_end_the_cell_with_their_reason() -> None:
    why, cell, _ = aborted(Config(api_key="k"), plan(measured=100))
    assert "no request succeeds (8 failed, the last with: HTTP 401: Unauthorized)" in why
    assert len(cell.requests) <= 8 + 3


@pytest.mark.parametrize("load", [{"concurrency": 4}, {"rate": 100.0}])
def test_interruption_leaves_no_task_and_no_running_request(load: dict[str, float]) -> None:
    ours = ("measure_cell", "_closed_loop", "_open_loop", "_CellRun", "LoopWatch", "paced")

    async def run() -> tuple[list[str], list[Any]]:
        async with mock_engine(EAGLE3) as engine:
            cell = asyncio.create_task(run_cell(engine, plan(measured=500, max_output_tokens=100, **load)))
            while len(engine.machine.running) < 2:
                await asyncio.sleep(0.005)
            cell.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cell
            server = Server(engine.url, None, "mock-model")
            async with open_session(server) as session:
                assert await wait_until_idle(session, server)
            names = [getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()]
            return [name for name in names if name.startswith(ours)], list(engine.machine.running)

    assert asyncio.run(run()) == ([], [])


def test_a_server_without_metrics_gives_no_counters() -> None:
    cell, _ = measure(replace(EAGLE3, has_metrics=False), plan())
    assert cell.counters_before is cell.counters_after is None
    assert all(r.ok for r in cell.measured)


def test_running_and_waiting_requests_are_read_for_each_engine() -> None:
    labels = '{engine="0",model_name="m {x}"}'
    assert requests_in_flight(f"vllm:num_requests_running{labels} 3.0\nvllm:num_requests_waiting{labels} 2.0\n") == 5
    two_ranks = 'sglang:num_running_reqs{tp_rank="0"} 1.0\nsglang:num_running_reqs{tp_rank="1"} 1.0\n'
    assert requests_in_flight(two_ranks + "sglang:num_queue_reqs 0.0\n") == 2
    assert requests_in_flight("vllm:generation_tokens_total 3.0\n") is None


def test_idle_is_waited_for_and_not_only_looked_up() -> None:
    async def run() -> tuple[float | None, bool, float | None]:
        async with mock_engine(Config(sim=Sim(base_s=0.02))) as engine:
            server = Server(engine.url, None, "mock-model")
            async with open_session(server) as session:
                job = engine.machine.submit({"max_tokens": 10}, "hi")
                await asyncio.sleep(0.01)
                before = requests_in_flight(await scrape(session, server) or "")
                idle = await wait_until_idle(session, server)
                assert job.finish == "length"
                return before, idle, requests_in_flight(await scrape(session, server) or "")

    assert asyncio.run(run()) == (1, True, 0)


def test_a_blocked_loop_shows_in_the_self_check() -> None:
    async def watched(block_s: float) -> float:
        async with watch_loop() as watch:
            for _ in range(5):
                await asyncio.sleep(0.02)
                time.sleep(block_s)
        return watch.health([]).loop_lag_p99_s

    blocked_s = asyncio.run(watched(0.2))
    assert blocked_s > 0.15
    assert asyncio.run(watched(0.0)) < blocked_s


def test_a_loop_that_never_ticked_is_a_lag_and_not_zero() -> None:
    async def watched() -> float:
        async with watch_loop() as watch:
            time.sleep(0.2)
        return watch.health([0.0, 0.4]).loop_lag_p99_s

    assert asyncio.run(watched()) > 0.1


def test_late_sends_and_processor_time_are_in_the_cells_health() -> None:
    cell, _ = measure(EAGLE3, plan())
    lateness = sorted(r.lateness_s for r in cell.requests)
    assert lateness[0] <= cell.health.send_lateness_p99_s <= lateness[-1]
    assert 0.0 < cell.health.cpu_share < 2.0


def test_a_plan_without_prompts_or_measured_requests_is_refused() -> None:
    with pytest.raises(ValueError, match="needs prompts"):
        plan(prompts=())
    with pytest.raises(ValueError, match="at least one measured"):
        plan(measured=0)

"""Injected faults over real HTTP: every one is caught, and by the test that is for it; sound servers pass."""

from __future__ import annotations

import asyncio
import dataclasses
import json

import pytest
from mock_engine import Config, Faults, Sim, Speculation, mock_engine

from tuner.errors import UserError
from tuner.measure.lossless import Verified
from tuner.measure.lossless_records import OffProbe, off_from_dict, off_to_dict, verified_from_dict, verified_to_dict
from tuner.prompts import Prompt
from tuner.report.lossless_text import line
from tuner.run import verify_draw
from tuner.run.stream import Server
from tuner.run.verify_ask import Choice, RefusedError, read_choice
from tuner.run.verify_draw import Deadline, Drawn, draw
from tuner.run.verify_probe import probe_off, verify_server
from tuner.run.verify_task import Effort, Task, constraint, make_task, plain_task, seed_of, what_is_wrong

SIM = Sim(base_s=0.001, slope=0.0, prefill_s=0.0)
EAGLE3 = Speculation("eagle3", 3, 3)
SCHEMA = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}
BOUND = {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}}


def task(samples: int = 512, tokens: int = 24, prompts: int = 8, temperatures: tuple[float, ...] = (1.0,)) -> Task:
    return plain_task(Effort(prompts, tokens, samples, 5), temperatures, 32, 0, 0.5)


def with_json(plain: Task, timeout_s: float = 5.0) -> Task:
    asked = [(f"json/{i}", {"messages": [{"role": "user", "content": f"q {i}"}], **BOUND}) for i in range(6)]
    return dataclasses.replace(plain, structured=tuple(asked), timeout_s=timeout_s)


def verify(
    faults: Faults, asked: Task, flavour: str = "vllm", spec: Speculation = EAGLE3, sampling_s: float | None = None
) -> tuple[OffProbe, Verified]:
    async def run() -> tuple[OffProbe, Verified]:
        sound = Config(sim=SIM, flavour=flavour)
        broken = dataclasses.replace(sound, spec=spec, faults=faults)
        async with mock_engine(sound) as off_engine, mock_engine(broken) as spec_engine:
            off = await probe_off(Server(off_engine.url, None, "mock-model"), asked)
            server = Server(spec_engine.url, None, "mock-model")
            return off, await verify_server(server, asked, off, "eagle3 N=3", sampling_s=sampling_s)

    return asyncio.run(run())


def whys(verified: Verified) -> list[str]:
    return [why for _, why in verified.faults()]


@pytest.mark.parametrize("flavour", ["vllm", "sglang"])
def test_a_sound_server_passes_and_says_what_it_would_have_caught(flavour: str) -> None:
    off, verified = verify(Faults(), with_json(task()), flavour)
    assert whys(verified) == []
    assert verified.greedy is not None
    assert verified.greedy.prompts == 8
    (sampled,) = verified.sampled
    assert sampled.look == 3
    assert 512 <= sampled.second <= 512 + 4 * 32
    assert 0 < sampled.power(0.05) < sampled.power(0.2)
    assert sampled.caught is not None
    assert len(verified.controls) == 1
    assert verified.drafted is not None
    assert verified.drafted > 500
    assert verified.drafted_greedily is not None
    assert 8 * 24 / 4 <= verified.drafted_greedily <= 8 * 24  # 8 answers of 24 tokens, 1 to 4 a step
    assert verified.structured is not None
    assert verified.structured.whole == verified.structured.asked == 6
    # Records come back from JSON as they were.
    assert verified_from_dict(json.loads(json.dumps(verified_to_dict(verified)))) == verified
    restored = off_from_dict(json.loads(json.dumps(off_to_dict(off))))
    assert {p: sorted(t) for p, t in restored.samples[0].all.items()} == {
        p: sorted(t) for p, t in off.samples[0].all.items()
    }
    assert [a.tokens for a in restored.greedy] == [a.tokens for a in off.greedy]


def test_a_shift_of_a_twentieth() -> None:
    _, verified = verify(Faults(tv_shift=0.05), task(samples=8192, prompts=2))
    (why,) = whys(verified)
    assert why.startswith("at temperature 1 the first 5 tokens are not drawn from the target's distribution")


def test_a_biased_bonus_token() -> None:
    _, verified = verify(Faults(bonus_bias=0.5), task(samples=4096, prompts=2))
    assert [at for at, _ in verified.faults()] == [1.0]


def test_a_stale_cache_every_500_steps_shows_in_greedy_gaps() -> None:
    """48 answers of 96 tokens at 2.4 a step are 1,900 steps or 3 stale ones: some prompts get a wrong token."""
    asked = task(tokens=96, prompts=48, temperatures=())
    _, verified = verify(Faults(stale_kv_every=500), asked)
    ((at, why),) = verified.faults()
    assert at == 0
    assert verified.greedy is not None
    assert 1 <= len(verified.greedy.faults) <= 4
    assert verified.greedy.floor == ()
    assert "is no rounding; off parts from itself in 0 of" in why
    assert verified.fault(1.0) == why  # a server that is wrong greedily is not trusted at other temperatures


@pytest.mark.parametrize("flavour", ["vllm", "sglang"])
def test_an_ignored_temperature_is_seen_at_the_first_look(flavour: str) -> None:
    _, verified = verify(Faults(spec_greedy=True), task(samples=2048, prompts=2), flavour)
    (sampled,) = verified.sampled
    assert sampled.failed
    assert sampled.look == 0
    assert verified.greedy is not None
    assert not verified.greedy.failed
    assert verified.fault(0.0) is None
    assert verified.fault(0.7) is not None


def test_truncated_json_is_unsafe() -> None:
    _, verified = verify(Faults(cut_json=True), with_json(task(samples=64, prompts=2)))
    (why,) = whys(verified)
    assert why.startswith("unsafe for this workload: 0 of 6 answers bound to a grammar ended and parse, 6 without")
    assert "it is no JSON" in why


@pytest.mark.parametrize("fault", [{"die_at_json": True}, {"hang_at_json": True}])
def test_a_server_that_dies_or_hangs_on_json_is_unsafe(fault: dict[str, bool]) -> None:
    _, verified = verify(Faults(**fault), with_json(task(samples=64, prompts=2), timeout_s=2.0))
    assert verified.unsafe is not None
    assert verified.unsafe.endswith("asked for answers bound to a grammar")
    assert verified.greedy is not None  # what was found before stays


def test_a_server_that_dies_before_its_first_sample_is_unsafe_and_not_accused_by_samples() -> None:
    """Its fourth request is the first for samples: three greedy prompts come before it."""
    _, verified = verify(Faults(die_at_request=4), task(samples=64, prompts=3))
    assert verified.unsafe is not None
    assert verified.unsafe.endswith("asked for samples at temperature 1")
    assert verified.sampled == ()
    assert list(verified.faults()) == [(1.0, f"unsafe for this workload: {verified.unsafe}")]
    assert "unsafe for this workload" in line(verified)


def test_a_server_that_drafts_nothing_proves_nothing() -> None:
    _, verified = verify(Faults(), task(samples=256, prompts=2, temperatures=(1.0,)), spec=Speculation("ngram", 0, 0))
    assert verified.drafted is None  # it has no such counter: nothing is claimed of it
    idle = dataclasses.replace(verified, drafted=0, greedy=None)
    assert idle.vacuous
    assert not idle.tested


def test_time_that_is_up_ends_sampling_with_what_there_is() -> None:
    _, verified = verify(Faults(), task(samples=1024, prompts=2), sampling_s=0.1)
    assert whys(verified) == []
    assert verified.greedy is not None
    assert sum(s.second for s in verified.sampled) < 1024


def test_a_control_that_fails_makes_the_test_void() -> None:
    """Off whose two halves differ: then a difference says nothing of speculation."""
    off, verified = verify(Faults(spec_greedy=True), task(samples=1024, prompts=2))
    (failed,) = verified.sampled
    void = dataclasses.replace(verified, controls=(failed,))
    assert not void.trusted(1.0)
    assert whys(void) == []
    assert off.samples[0].temperature == 1.0


def test_seeds_differ_between_servers_and_requests() -> None:
    one = task()
    seeds = {seed_of(one, arm, prompt, i) for arm in ("off", "eagle3 N=3") for prompt in "ab" for i in range(100)}
    assert len(seeds) == 400


class Answering:
    """In the place of `ask`: a server that answers `n`, or one of them. Counts answers in flight, keeps seeds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ignores_n: bool = False) -> None:
        self.now = self.most = 0
        self.seeds: list[int] = []
        self.ignores_n = ignores_n
        monkeypatch.setattr(verify_draw, "ask", self.ask)

    async def ask(self, _: object, __: object, ___: str, body: dict[str, int], ____: float) -> tuple[Choice, ...]:
        self.now += body["n"]
        self.most = max(self.most, self.now)
        self.seeds += [body["seed"]] if "seed" in body else []
        await asyncio.sleep(0)
        self.now -= body["n"]
        return (Choice((1, 2), (), True, ""),) * (1 if self.ignores_n else body["n"])

    def draw(self, have: Drawn, slots: int, wanted: int, until: Deadline | None = None) -> None:
        until = until or Deadline()
        asyncio.run(draw(None, None, task(), 1.0, "off", slots, have, wanted, until))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("slots", "most", "each"),
    [(1, 1, 200), (2, 2, 200), (3, 3, 200), (16, 16, 200), (33, 32, 208), (100, 96, 224)],
)
def test_sampling_has_no_more_answers_in_flight_than_was_said(
    slots: int, most: int, each: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two requests of half of them, or more requests of 32 answers: 100 are three. 33: 13 requests of 16 make 208."""
    server, have = Answering(monkeypatch), Drawn()
    server.draw(have, slots, 200)
    assert server.most == most
    assert {len(texts) for texts in have.fixed().values()} == {each}


@pytest.mark.parametrize("ignores_n", [False, True])
def test_no_seed_is_sent_twice_and_every_prompt_gets_its_samples(
    ignores_n: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, have = Answering(monkeypatch, ignores_n), Drawn()
    for wanted in (8, 16, 32, 64):  # look by look
        server.draw(have, 8, wanted)
        assert {len(texts) for texts in have.fixed().values()} == {wanted}
    assert len(have.fixed()) == 4
    assert len(server.seeds) == (64 if ignores_n else 16)  # one of the four prompts is seeded; 4 answers a request
    assert len(set(server.seeds)) == len(server.seeds)


def test_time_that_is_up_leaves_every_prompt_its_first_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    server, have = Answering(monkeypatch), Drawn()
    server.draw(have, 8, 64, Deadline(0.0))
    assert [len(texts) for texts in have.fixed().values()] == [4] * 4


def test_who_refused_is_named() -> None:
    """24 tokens are asked for greedily, and one of the servers takes 16."""

    async def run(off_len: int, spec_len: int) -> None:
        sound = Config(sim=SIM, flavour="vllm", max_model_len=off_len)
        narrow = dataclasses.replace(sound, spec=EAGLE3, max_model_len=spec_len)
        async with mock_engine(sound) as off_engine, mock_engine(narrow) as spec_engine:
            asked = task(samples=64, prompts=2)
            off = await probe_off(Server(off_engine.url, None, "mock-model"), asked)
            await verify_server(Server(spec_engine.url, None, "mock-model"), asked, off, "eagle3 N=3")

    with pytest.raises(RefusedError, match=r"^eagle3 N=3: HTTP 400: This model's maximum context length is 16 tokens"):
        asyncio.run(run(4096, 16))
    with pytest.raises(RefusedError, match=r"^off: HTTP 400: This model's maximum context length is 16 tokens"):
        asyncio.run(run(16, 4096))


def test_variants_cover_seeds_top_p_and_top_k() -> None:
    bodies = {name: (body, seeded) for name, body, seeded in task().sampled}
    assert [seeded for _, seeded in bodies.values()] == [True, False, False, False]
    assert [body.get("top_p") for body, _ in bodies.values()] == [None, None, 0.9, None]
    assert [body.get("top_k") for body, _ in bodies.values()] == [None, None, None, 20]


def test_a_study_sends_only_the_sampling_of_its_workload() -> None:
    few = plain_task(Effort(all_sampling=False), (1.0,), 8, 0, 0.5)
    assert [seeded for _, _, seeded in few.sampled] == [True, False, True, False]
    assert not any({"top_p", "top_k"} & set(body) for _, body, _ in few.sampled)


def test_gaps_are_not_asked_where_penalties_move_them() -> None:
    prompt = Prompt("p", "chat", "en", (("user", "hello"),))
    body = {"messages": [], "presence_penalty": 0.5}
    made = make_task(
        "chat", [(prompt, body)], {}, (), Effort(), concurrency=4, limit=4, tolerance=0.5, timeout_s=1, seed=0,
        engine="vllm",
    )  # fmt: skip
    assert not made.gaps


@pytest.mark.parametrize(
    ("body", "text", "ended", "wrong"),
    [
        (BOUND, '{"answer": "x"}', True, None),
        (BOUND, '{"answer": "x', True, "it is no JSON: Unterminated string starting at: line 1 column 12 (char 11)"),
        (BOUND, '{"other": 1}', True, "it lacks 'answer', which its schema requires"),
        (BOUND, '{"answer": "x"}', False, "it did not end within 1 tokens"),
        ({"guided_regex": "a+"}, "aaa", True, None),
        ({"structured_outputs": {"json": SCHEMA}}, "[1]", True, "it lacks 'answer', which its schema requires"),
        ({"json_schema": json.dumps(SCHEMA)}, '{"answer": 1}', True, None),
    ],
)
def test_answers_bound_to_a_grammar(body: dict[str, object], text: str, ended: bool, wrong: str | None) -> None:
    assert constraint(body) is not None
    choice = read_choice(
        {"token_ids": [1], "message": {"content": text}, "finish_reason": "stop" if ended else "length"}
    )
    assert what_is_wrong(body, choice) == wrong


def test_tokens_in_each_format() -> None:
    rows = [{"token": "token_id:7", "logprob": -0.5, "top_logprobs": [{"token": "token_id:8", "logprob": -0.4}]}]
    told = read_choice({"token_ids": [7], "logprobs": {"content": rows}, "finish_reason": "length"})
    assert (told.tokens, told.ended) == ((7,), False)
    assert told.scores == ({8: -0.4, 7: -0.5},)
    meta = {"output_token_logprobs": [[-0.5, 7, " a"]], "output_top_logprobs": [[[-0.4, 8, " b"], [-0.5, 7, " a"]]]}
    assert read_choice({"response_token_ids": [7], "meta_info": meta}).scores == ({8: -0.4, 7: -0.5},)
    names = {"tokens": [" a"], "token_logprobs": [-0.5], "top_logprobs": [{" b": -0.7}]}
    by_name = read_choice({"text": " a", "logprobs": names, "finish_reason": "stop"})
    assert (by_name.tokens, by_name.scores) == ((" a",), ({" b": -0.7, " a": -0.5},))
    with pytest.raises(UserError, match="neither token ids"):
        read_choice({"text": "a", "finish_reason": "stop"})

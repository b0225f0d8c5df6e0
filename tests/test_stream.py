"""Reading streams: what counts as a token, when it arrived, and what makes an answer a failed one."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from mock_engine import Config, Faults, Sim, Speculation, mock_engine

from tuner.run.sse import Answer, StreamReader
from tuner.run.stream import Server, open_session, send_one

SSE = Path(__file__).parent / "data" / "sse"


def event(text: str | None, tokens: int | None = None, finish: str | None = None, **more: Any) -> str:
    """`text` None: an event without choices. `tokens`: the cumulative usage it carries, if any."""
    choices = [] if text is None else [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]
    usage = {"usage": {"prompt_tokens": 5, "completion_tokens": tokens}} if tokens is not None else {}
    return f"data: {json.dumps({'choices': choices, **usage, **more})}\n\n"


def read(*reads: tuple[float, str | bytes]) -> Answer:
    """The answer from reads of the socket, each with its arrival in seconds."""
    reader = StreamReader()
    reader.sent_s = 0.0
    for arrived_s, data in reads:
        reader.feed(arrived_s, data if isinstance(data, bytes) else data.encode())
    reader.end()
    reader.ended_s = reads[-1][0] if reads else 0.0
    return reader.answer()


def transcript(name: str) -> Answer:
    rows = [json.loads(line) for line in (SSE / name).read_text().splitlines()]
    return read(*((row["t_ms"] / 1000, row["read"]) for row in rows))


def tpot_s(answer: Answer) -> float:
    (first_s, first_n), (last_s, last_n) = answer.chunks[0], answer.chunks[-1]
    return (last_s - first_s) / (last_n - first_n)


def gaps_s(answer: Answer) -> list[float]:
    return [b - a for (a, _), (b, _) in pairwise(answer.chunks)]


def test_m01_three_tokens_a_chunk_is_3_ms_a_token_and_9_ms_a_chunk() -> None:
    answer = transcript("m01_chunks_of_three.jsonl")
    # first token at 40 ms, then 100 chunks of 3 every 9 ms: 1 + 300 tokens, (940 - 40) / 300 = 3.00 ms
    assert answer.error is None
    assert answer.n_out == 301
    assert len(answer.chunks) == 101
    assert answer.chunks[0] == (pytest.approx(0.040), 1)
    assert tpot_s(answer) == pytest.approx(0.003)
    assert gaps_s(answer) == pytest.approx([0.009] * 100)


def test_m18_tokens_come_from_usage_and_never_from_chunks() -> None:
    answer = transcript("m18_usage_at_the_end.jsonl")
    # 50 chunks in 9 s would read as 5.6 tokens/s; usage says 226: 226 / 9 = 25.1
    assert answer.error is None
    assert answer.n_out == 226
    assert answer.n_out / answer.chunks[-1][0] == pytest.approx(25.1, abs=0.05)
    # counts are known at both ends only; the arrivals of text are all kept
    assert [answer.chunks[0], answer.chunks[-1]] == [(0.0, 1), (9.0, 226)]
    assert len(answer.chunks) == 50
    assert tpot_s(answer) == pytest.approx(9 / 225)
    counts = [n for _, n in answer.chunks]
    assert counts == sorted(counts)


def test_m20_tokens_that_came_without_text_lie_in_the_gap() -> None:
    answer = transcript("m20_buffered_tool_call.jsonl")
    # usage 1 at 436 ms, 17 at 619, 31 at 802: (802 - 436) / 30 = 12.2 ms
    assert answer.error is None
    assert answer.chunks == ((0.436, 1), (0.619, 17), (0.802, 31))
    assert tpot_s(answer) == pytest.approx(0.0122)
    assert answer.finish == "tool_calls"
    assert answer.text == '{"city": "Tehran"}'


def test_a_stream_recorded_from_vllm_counts_what_its_verify_steps_accepted() -> None:
    """vLLM 0.32.0 on CPU, EAGLE-3 with N = 3, max_tokens 24, per-request metrics `detailed`."""
    answer = transcript("vllm-0.32.0-eagle3-n3.jsonl")
    told = answer.events[-1]["metrics"]["speculative_decoding"]
    assert told["per_step_accepted"] == [2, 0, 0, 0, 0, 3, 0, 2, 0, 1, 2, 0, 2]
    # one token from prefill, then accepted + 1 a step; the last step's 3 are cut to 1 by max_tokens (26 -> 24)
    assert [n for _, n in answer.chunks] == [1, 4, 5, 6, 7, 8, 12, 13, 16, 17, 19, 22, 23, 24]
    assert (answer.n_in, answer.n_out, answer.finish, answer.error) == (34, 24, "length", None)
    assert answer.chunks[0][0] > 1.42847  # the role chunk came at 1428.47 ms


def test_the_role_chunk_is_no_token() -> None:
    role = event("", 0)
    answer = read((0.010, role), (0.050, event(" a", 1)), (0.070, event(" b", 2, "stop") + event(None, 2)))
    assert answer.chunks == ((0.050, 1), (0.070, 2))
    assert answer.n_in == 5


def test_events_of_one_read_arrived_together() -> None:
    answer = read((0.1, event(" a", 1)), (0.2, event(" b", 2) + event(" c", 5)), (0.3, event("", 6, "length")))
    assert answer.chunks == ((0.1, 1), (0.2, 5), (0.3, 6))


def test_tokens_without_any_text_are_counted_where_usage_grew() -> None:
    answer = read((0.1, event("", 1)), (0.4, event("", 9)), (0.5, event("", 9, "stop") + event(None, 9)))
    assert answer.chunks == ((0.1, 1), (0.4, 9))
    assert answer.text == ""


def test_reasoning_under_either_name_is_text_once() -> None:
    def delta(**fields: str) -> str:
        choice = {"index": 0, "delta": fields, "finish_reason": None}
        return f"data: {json.dumps({'choices': [choice]})}\n\n"

    # vLLM 0.32 says `reasoning`, SGLang `reasoning_content`; some send both
    said = delta(reasoning="a") + delta(reasoning_content="b") + delta(reasoning="c", reasoning_content="c")
    assert read((0.1, said + event("!", 4, "stop"))).text == "abc!"


def test_completions_carry_plain_text() -> None:
    choice = {"index": 0, "text": " hello", "finish_reason": "length"}
    data = json.dumps({"choices": [choice], "usage": {"prompt_tokens": 3, "completion_tokens": 1}})
    answer = read((0.1, f"data: {data}\n\ndata: [DONE]\n\n"))
    assert (answer.text, answer.finish, answer.error) == (" hello", "length", None)


def test_the_last_events_are_kept_for_the_engine_adapter() -> None:
    body = "".join(event(f" {i}", i + 1) for i in range(10)) + event("", 10, "length")
    tail = event(None, sglext={"spec_tokens_details": {"spec_verify_ct": 4}}) + event(None, 10) + "data: [DONE]\n\n"
    answer = read((0.1, body + tail))
    assert len(answer.events) == 4
    assert answer.events[-2]["sglext"] == {"spec_tokens_details": {"spec_verify_ct": 4}}
    assert answer.events[-1]["usage"]["completion_tokens"] == 10


@pytest.mark.parametrize(
    ("reads", "error"),
    [
        ([(0.1, event(" a", 1))], "the stream ended without a finish reason"),
        ([], "the stream ended without a finish reason"),
        ([(0.1, event(" a", finish="stop"))], "the server sent no token counts: it must support "
         "stream_options.include_usage"),
        ([(0.1, event(" a", 1)), (0.2, 'data: {"choices":[{"ind')],
         'unreadable event in the stream: {"choices":[{"ind'),
        ([(0.1, event(" a", 1)), (0.2, 'data: {"error":{"message":"CUDA out of memory","code":500}}\n\n')],
         "error in the stream: CUDA out of memory"),
        ([(0.1, 'data: {"object":"error","message":"too long"}\n\n')], "error in the stream: too long"),
        ([(0.1, event(" a", 1, "abort"))], "the engine ended the request with finish reason 'abort'"),
    ],
)  # fmt: skip
def test_an_answer_that_is_not_whole_is_a_failure(reads: list[tuple[float, str]], error: str) -> None:
    assert read(*reads).error == error


def test_what_arrived_before_the_failure_is_kept() -> None:
    answer = read((0.1, event(" a", 1)), (0.2, event(" b", 4)), (0.3, 'data: {"error":"boom"}\n\n'))
    assert answer.chunks == ((0.1, 1), (0.2, 4))
    assert (answer.text, answer.n_out, answer.error) == (" a b", 4, "error in the stream: boom")


def test_comments_other_fields_and_windows_line_ends_are_understood() -> None:
    stream = ": ping\r\n\r\nevent: message\r\nid: 7\r\n" + event(" a", 1, "stop").replace("\n", "\r\n")
    answer = read((0.1, stream))
    assert (answer.text, answer.n_out, answer.error) == (" a", 1, None)


def test_an_event_without_its_blank_line_counts_at_the_end_of_the_stream() -> None:
    answer = read((0.1, event(" a", 1)), (0.2, event(" b", 2, "stop").rstrip("\n")))
    assert (answer.n_out, answer.finish, answer.error) == (2, "stop", None)
    assert answer.chunks[-1] == (0.2, 2)


@given(st.lists(st.integers(1, 400), max_size=12), st.booleans())
def test_where_reads_are_cut_does_not_matter(cuts: list[int], windows: bool) -> None:
    text = event("", 0) + ": hi\n\n" + event(" سلام", 1) + event(" 世界", 4) + event("", 4, "stop") + event(None, 4)
    data = (text.replace("\n", "\r\n") if windows else text).encode()
    edges = sorted({0, len(data), *(c for c in cuts if c < len(data))})
    answer = read(*((float(i), data[a:b]) for i, (a, b) in enumerate(pairwise(edges))))
    assert (answer.text, answer.n_out, answer.finish, answer.error) == (" سلام 世界", 4, "stop", None)


def ask(config: Config, timeout_s: float | None = 20.0, key: str | None = None, **body: Any) -> Answer:
    """One request to a mock engine with this configuration."""

    async def run() -> Answer:
        async with mock_engine(config) as engine:
            server = Server(engine.url, key, config.served_name)
            request = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 6, "temperature": 0, **body}
            async with open_session(server) as session:
                return await send_one(session, server, "chat", request, timeout_s)

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("faults", "error"),
    [
        (Faults(http_500_every=1), "HTTP 500: EngineCore encountered an issue. See stack trace for the root cause."),
        (Faults(error_in_stream_every=1), "error in the stream: Internal server error"),
        (Faults(no_finish_every=1), "the stream ended without a finish reason"),
        (Faults(cut_event_every=1), 'unreadable event in the stream: {"id":"chatcmpl-1","choices":[{"index":0,"del'),
        (Faults(no_usage=True), "the server sent no token counts: it must support stream_options.include_usage"),
    ],
)
def test_failures_over_http_are_sentences(faults: Faults, error: str) -> None:
    assert ask(Config(faults=faults)).error == error


def test_a_reset_connection_is_a_failed_request_that_keeps_its_tokens() -> None:
    answer = ask(Config(faults=Faults(reset_every=1)))
    assert (answer.error or "").startswith("connection lost: ")
    assert answer.n_out == 5  # the sixth token never arrived


@pytest.mark.parametrize(
    ("served_by", "errors"),
    [
        # Which of the connections answer their first request; none answers a second one, as a server that closed it.
        ([True, True, True], [None, None, None]),
        ([True, False], [None, "connection lost: Server disconnected"]),
    ],
)
def test_a_pooled_connection_that_the_server_had_closed_costs_no_request(
    served_by: list[bool], errors: list[str | None]
) -> None:
    body = event(" a", 1, "stop").encode()
    answer = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    connections: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(0)
        number = len(connections) - 1
        for turn in range(2):
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(
                int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length")
            )
            await reader.readexactly(length)
            connections[number] += 1
            if turn or not served_by[number]:
                break
            writer.write(answer)
            await writer.drain()
        writer.close()

    async def run() -> list[str | None]:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
            server = Server(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}", None, "m")
            async with open_session(server) as session:
                return [(await send_one(session, server, "chat", {}, 5.0)).error for _ in errors]

    assert asyncio.run(run()) == errors
    # Every request after the first was tried on the connection before it, in vain, and then on one of its own.
    assert connections == [2] * (len(served_by) - 1) + [1]


def test_a_server_that_hangs_is_given_up_after_the_timeout() -> None:
    assert ask(Config(faults=Faults(hang_at_request=1)), timeout_s=0.2).error == "no complete answer within 0.2 s"


def test_a_wrong_key_is_said_and_never_shown() -> None:
    answer = ask(Config(api_key="right-key"), key="wrong-key")
    assert answer.error == "HTTP 401: Unauthorized"
    assert "wrong-key" not in repr(Server("http://x", "wrong-key", "m"))
    assert ask(Config(api_key="right-key"), key="right-key").error is None


def test_an_unknown_model_is_answered_with_the_servers_own_sentence() -> None:
    async def run() -> Answer:
        async with mock_engine() as engine:
            server = Server(engine.url, None, "other")
            async with open_session(server) as session:
                return await send_one(session, server, "completions", {"prompt": "hi"})

    assert asyncio.run(run()).error == "HTTP 404: The model `other` does not exist."


def test_a_closed_port_is_a_refused_connection() -> None:
    async def run() -> Answer:
        async with mock_engine() as engine:
            server = Server(engine.url, None, "mock-model")
        async with open_session(server) as session:
            return await send_one(session, server, "chat", {"messages": []})

    answer = asyncio.run(run())
    assert (answer.error or "").startswith("connection refused")
    assert answer.chunks == ()


def test_error_bodies_of_any_shape_are_read_and_shortened() -> None:
    async def run(body: str) -> str | None:
        async def refuse(request: web.Request) -> web.Response:
            return web.Response(status=400, text=body)

        app = web.Application()
        app.router.add_post("/v1/completions", refuse)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        server = Server("http://{}:{}/".format(*runner.addresses[0][:2]), None, "m")
        async with open_session(server) as session:
            answer = await send_one(session, server, "completions", {"prompt": ""})
        await runner.cleanup()
        return answer.error

    assert asyncio.run(run('{"detail": "no such route"}')) == "HTTP 400: no such route"
    assert asyncio.run(run("plain\n  words")) == "HTTP 400: plain words"
    assert asyncio.run(run("x" * 5000)) == "HTTP 400: " + "x" * 199 + "…"


@pytest.mark.parametrize("flavour", ["vllm", "sglang"])
@pytest.mark.parametrize("chat", [True, False])
def test_counts_equal_what_the_server_sent(flavour: str, chat: bool) -> None:
    sim = Sim(base_s=0.003, alpha={"*": {"0": [0.9, 0.8, 0.7]}})
    config = Config(flavour=flavour, spec=Speculation("eagle3", 3, 3), sim=sim, metrics_level="detailed")

    async def run() -> tuple[Answer, dict[str, Any]]:
        async with mock_engine(config) as engine:
            server = Server(engine.url, None, "mock-model")
            said = {"messages": [{"role": "user", "content": "hello"}]} if chat else {"prompt": "hello"}
            body = {**said, "max_tokens": 60, "temperature": 0, "return_spec_tokens_details": True}
            async with open_session(server) as session:
                answer = await send_one(session, server, "chat" if chat else "completions", body)
            return answer, engine.machine.jobs[0].truth()

    answer, truth = asyncio.run(run())
    assert answer.error is None
    assert (answer.n_out, answer.text, answer.finish, answer.n_in) == (60, truth["text"], "length", truth["n_in"])
    sent = {n: sent_s - answer.sent_s for sent_s, n in truth["sent"]}
    assert len(sent) < 60  # several tokens a chunk, or this tests nothing
    # each chunk arrived with a count that was sent, after it was sent
    assert all(arrived_s >= sent[n] for arrived_s, n in answer.chunks)
    assert answer.chunks[-1][1] == 60


def test_final_usage_alone_still_gives_exact_totals() -> None:
    answer = ask(Config(faults=Faults(final_usage_only=True)), max_tokens=12)
    assert (answer.n_out, answer.chunks[0][1], answer.chunks[-1][1], answer.error) == (12, 1, 12, None)


def test_c19_text_that_stops_while_tokens_are_spent_is_seen_as_such() -> None:
    answer = ask(Config(faults=Faults(stuck_json=True)), max_tokens=200)
    assert (answer.text, answer.n_out, answer.error) == ('{"', 200, None)
    with pytest.raises(json.JSONDecodeError):
        json.loads(answer.text)


def test_log_probabilities_can_be_read_from_all_events() -> None:
    async def run() -> Answer:
        async with mock_engine() as engine:
            server = Server(engine.url, None, "mock-model")
            body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, "temperature": 0,
                    "logprobs": True, "top_logprobs": 2}  # fmt: skip
            async with open_session(server) as session:
                return await send_one(session, server, "chat", body, keep_events=None)

    answer = asyncio.run(run())
    rows = [row for e in answer.events for c in e["choices"] for row in (c["logprobs"] or {}).get("content", [])]
    assert "".join(row["token"] for row in rows) == answer.text
    # greedy: the token that was taken is the likeliest
    assert all(row["top_logprobs"][0]["logprob"] == row["logprob"] for row in rows)


def test_a_host_that_never_accepts_is_refused_and_not_a_slow_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*args: Any, **kwargs: Any) -> Any:
        raise aiohttp.ConnectionTimeoutError("Connection timeout to host")

    monkeypatch.setattr(aiohttp.TCPConnector, "connect", never)

    async def run() -> Answer:
        server = Server("http://127.0.0.1:9", None, "m")
        async with open_session(server) as session:
            return await send_one(session, server, "chat", {"messages": []}, timeout_s=5)

    assert asyncio.run(run()).error == "connection refused: no connection within 10 s"

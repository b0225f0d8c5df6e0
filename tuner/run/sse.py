"""One answer out of server-sent events: arrival times and exact token counts. No sockets, no clock.

Tokens are counted from `usage.completion_tokens` alone: a chunk carries any number of them under speculation.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back. `sent_s` is on `time.perf_counter`; `ended_s` and the arrivals in `chunks` count from it.

    `events`: the last events of the stream as parsed, where engines put per-request acceptance.
    """

    sent_s: float
    ended_s: float
    chunks: tuple[tuple[float, int], ...]
    n_in: int | None
    n_out: int
    finish: str | None
    error: str | None
    text: str
    events: tuple[Mapping[str, Any], ...]


class StreamReader:
    """Accumulates one answer, read by read. Events of one read arrived together and share one timestamp.

    Where a server puts counts on its final usage event only, `chunks` keeps the arrivals of text: the first holds the
    one token prefill yields, the last holds all, and counts between are linear in time. TTFT, chunk gaps and TPOT
    need no more; throughput interpolates in this way anyhow.
    """

    def __init__(self, keep_events: int | None = 4) -> None:
        self.sent_s: float | None = None
        self.ended_s = 0.0
        self.error: str | None = None
        self._buffer = b""
        self._events: deque[Mapping[str, Any]] = deque(maxlen=keep_events)
        self._counted: list[tuple[float, int]] = []
        self._texts: list[str] = []
        self._text_arrivals_s: list[float] = []
        self._arrived_s = 0.0
        self._n_in: int | None = None
        self._n_out = 0
        self._finish: str | None = None
        self._saw_usage = False
        self._counts_ride_on_chunks = False

    def feed(self, arrived_s: float, data: bytes) -> None:
        """One read from the socket, with the time it returned."""
        self._arrived_s = arrived_s
        n_before, texts_before = self._n_out, len(self._texts)
        *whole, self._buffer = (self._buffer + data).replace(b"\r\n", b"\n").split(b"\n\n")
        for block in whole:
            self._absorb(_payload(block))
        if self._n_out > n_before:
            self._counted.append((arrived_s, self._n_out))
        if len(self._texts) > texts_before:
            self._text_arrivals_s.append(arrived_s)

    def end(self) -> None:
        """The stream is over: judge whether the answer is whole."""
        self.feed(self._arrived_s, b"\n\n")
        if self._finish is None:
            self.fail("the stream ended without a finish reason")
        elif self._finish in ("abort", "error"):
            self.fail(f"the engine ended the request with finish reason '{self._finish}'")
        elif not self._saw_usage:
            self.fail("the server sent no token counts: it must support stream_options.include_usage")

    def fail(self, error: str) -> None:
        """The first failure is the cause; what follows from it is not kept."""
        if self.error is None:
            self.error = error

    def answer(self) -> Answer:
        sent_s = self.sent_s or 0.0
        return Answer(
            sent_s=sent_s,
            ended_s=self.ended_s - sent_s,
            chunks=tuple((t - sent_s, n) for t, n in self._chunks()),
            n_in=self._n_in,
            n_out=self._n_out,
            finish=self._finish,
            error=self.error,
            text="".join(self._texts),
            events=tuple(self._events),
        )

    def _absorb(self, payload: bytes) -> None:
        if not payload or payload == b"[DONE]":
            return
        try:
            event = json.loads(payload)
        except ValueError:
            event = None
        if not isinstance(event, dict):
            self.fail(f"unreadable event in the stream: {shorten(payload.decode(errors='replace'))}")
            return
        if event.get("error") or event.get("object") == "error":
            self.fail(f"error in the stream: {error_message(event)}")
            return
        self._events.append(event)
        self._count(event)
        for choice in event.get("choices") or ():
            self._finish = choice.get("finish_reason") or self._finish
            if text := _text(choice):
                self._texts.append(text)

    def _count(self, event: Mapping[str, Any]) -> None:
        usage = event.get("usage")
        if not isinstance(usage, dict) or usage.get("completion_tokens") is None:
            return
        self._saw_usage = True
        self._counts_ride_on_chunks |= bool(event.get("choices"))
        self._n_out = max(self._n_out, int(usage["completion_tokens"]))
        if usage.get("prompt_tokens"):
            self._n_in = int(usage["prompt_tokens"])

    def _chunks(self) -> list[tuple[float, int]]:
        if self._counts_ride_on_chunks or not self._text_arrivals_s:
            return self._counted
        first_s, last_s = self._text_arrivals_s[0], self._text_arrivals_s[-1]
        if not self._saw_usage or last_s == first_s:
            return [(first_s, self._n_out)] if self._saw_usage else []
        per_second = (self._n_out - 1) / (last_s - first_s)
        inner = [(t, 1 + int((t - first_s) * per_second)) for t in self._text_arrivals_s[1:-1]]
        return [(first_s, 1), *inner, (last_s, self._n_out)]


def _payload(block: bytes) -> bytes:
    """The data of one event; comments and other fields carry nothing for us."""
    lines = (line for line in block.split(b"\n") if line.startswith(b"data:"))
    return b"\n".join(line[5:].removeprefix(b" ") for line in lines).strip()


def _text(choice: Mapping[str, Any]) -> str:
    """All text of a choice: content, reasoning under either engine's name, tool-call arguments, or completion text."""
    delta = choice.get("delta") or {}
    parts = [choice.get("text"), delta.get("reasoning_content") or delta.get("reasoning"), delta.get("content")]
    parts += [(call.get("function") or {}).get("arguments") for call in delta.get("tool_calls") or ()]
    return "".join(part for part in parts if part)


def error_message(body: str | Mapping[str, Any]) -> str:
    """What an error body says, short: {"error": {"message": …}}, {"error": …}, {"message": …}, or plain text."""
    if isinstance(body, str):
        try:
            parsed = json.loads(body)
        except ValueError:
            parsed = None
        if not isinstance(parsed, dict):
            return shorten(body)
        body = parsed
    said: Any = body
    for name in ("error", "message", "detail"):
        if isinstance(said, dict) and said.get(name):
            said = said[name]
    return shorten(said if isinstance(said, str) else json.dumps(said))


def shorten(text: str, limit: int = 200) -> str:
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 1] + "…"

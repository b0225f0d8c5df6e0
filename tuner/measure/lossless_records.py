"""What servers answered when losslessness was tested, and the verdicts, as records that come back from JSON."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.measure.lossless import Structured, Verified
from tuner.measure.lossless_greedy import Divergence, GreedyAnswer, GreedyResult, Token
from tuner.measure.lossless_sampled import PromptTest, SampledResult

Texts = tuple[tuple[Token, ...], ...]


@dataclass(frozen=True, slots=True)
class Samples:
    """The first k tokens at one temperature, by prompt. Off has two halves, drawn at different concurrencies."""

    temperature: float
    halves: tuple[Mapping[str, Texts], ...]

    @property
    def all(self) -> dict[str, Texts]:
        prompts = dict.fromkeys(prompt for half in self.halves for prompt in half)
        return {p: tuple(text for half in self.halves for text in half.get(p, ())) for p in prompts}


@dataclass(frozen=True, slots=True)
class StructuredAnswer:
    """`wrong`: why the answer to a request bound to a grammar cannot be used; None for one that ended and parses."""

    prompt: str
    wrong: str | None


@dataclass(frozen=True, slots=True)
class OffProbe:
    """All that off answered. `again`: greedily, at the other concurrency."""

    greedy: tuple[GreedyAnswer, ...] = ()
    again: tuple[GreedyAnswer, ...] = ()
    samples: tuple[Samples, ...] = ()
    structured: tuple[StructuredAnswer, ...] = ()


def off_to_dict(off: OffProbe) -> dict[str, Any]:
    """Samples as counts; pairs instead of mappings where keys are no text."""
    return {
        "greedy": [_answer_to(answer) for answer in off.greedy],
        "again": [_answer_to(answer) for answer in off.again],
        "samples": [
            {"temperature": s.temperature, "halves": [_counted(half) for half in s.halves]} for s in off.samples
        ],
        "structured": [dataclasses.asdict(answer) for answer in off.structured],
    }


def off_from_dict(data: Mapping[str, Any]) -> OffProbe:
    return OffProbe(
        tuple(_answer_from(one) for one in data["greedy"]),
        tuple(_answer_from(one) for one in data["again"]),
        tuple(Samples(s["temperature"], tuple(_drawn(half) for half in s["halves"])) for s in data["samples"]),
        tuple(StructuredAnswer(**one) for one in data["structured"]),
    )


def verified_to_dict(verified: Verified) -> dict[str, Any]:
    return dataclasses.asdict(verified)


def verified_from_dict(data: Mapping[str, Any]) -> Verified:
    greedy, structured = data["greedy"], data["structured"]
    return Verified(
        setting=data["setting"],
        greedy=_greedy(greedy) if greedy else None,
        sampled=tuple(_sampled(one) for one in data["sampled"]),
        controls=tuple(_sampled(one) for one in data["controls"]),
        labels=tuple((at, why) for at, why in data["labels"]),
        structured=Structured(**structured) if structured else None,
        drafted=data["drafted"],
        unsafe=data["unsafe"],
        unsafe_at=data["unsafe_at"],
        drafted_greedily=data.get("drafted_greedily"),
    )


def _greedy(data: Mapping[str, Any]) -> GreedyResult:
    sides = {name: tuple(Divergence(**one) for one in data[name]) for name in ("divergences", "floor")}
    return GreedyResult(**{**data, **sides})


def _sampled(data: Mapping[str, Any]) -> SampledResult:
    return SampledResult(**{**data, "tests": tuple(PromptTest(**test) for test in data["tests"])})


def _answer_to(answer: GreedyAnswer) -> dict[str, Any]:
    scores = [[[token, round(score, 5)] for token, score in row.items()] for row in answer.scores]
    return {"prompt": answer.prompt, "tokens": list(answer.tokens), "ended": answer.ended, "scores": scores}


def _answer_from(data: Mapping[str, Any]) -> GreedyAnswer:
    scores = tuple(dict(row) for row in data["scores"])
    return GreedyAnswer(data["prompt"], tuple(data["tokens"]), data["ended"], scores)


def _counted(half: Mapping[str, Sequence[tuple[Token, ...]]]) -> dict[str, list[Any]]:
    return {prompt: [[list(text), n] for text, n in Counter(texts).items()] for prompt, texts in half.items()}


def _drawn(data: Mapping[str, Any]) -> dict[str, Texts]:
    return {p: tuple(text for tokens, n in rows for text in [tuple(tokens)] * n) for p, rows in data.items()}

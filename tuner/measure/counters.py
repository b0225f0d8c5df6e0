"""Acceptance from two Prometheus dumps of any engine, with the reason whenever a figure is undefined."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from tuner.errors import UserError
from tuner.measure.acceptance import AcceptanceCounts

#: Engines whose counters have vLLM's names and meaning behind a prefix of their own.
PREFIXES = ("vllm:", "llamacpp:")
SGLANG_STEPS = "sglang:spec_verify_calls_total"


@dataclass(frozen=True, slots=True)
class CounterDelta:
    """What two dumps say of the time between them.

    `counts` is None when nothing can be said; `reasons` then says why, and otherwise names each figure left undefined.
    `tau_only`: set when the engine counts verify steps but not accepted drafts (SGLang).
    """

    counts: AcceptanceCounts | None
    reasons: tuple[str, ...] = ()
    tau_only: float | None = None
    drafts: float | None = None


NOT_FINITE = CounterDelta(None, ("a counter of speculation is NaN or infinite, and no count: take the dumps again",))


def read_counters(text: str) -> dict[tuple[str, str], float]:
    """(series, position) -> value, summed over every other label. Raises UserError for text that is not Prometheus'."""
    totals: dict[tuple[str, str], float] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if not sample.name.endswith("_created"):
                    key = (_with_total(sample.name), sample.labels.get("position", ""))
                    totals[key] = totals.get(key, 0.0) + sample.value
    except ValueError as error:
        raise UserError(
            f"the metrics text is not in Prometheus' format ({error}): save the body of GET /metrics"
        ) from None
    return totals


def counter_delta(before: str, after: str, n: int | None = None) -> CounterDelta:
    """Acceptance between two dumps. `n`: tokens drafted per step, where the dumps do not tell it."""
    first, last = read_counters(before), read_counters(after)
    for prefix in PREFIXES:
        names = {key for key in (*first, *last) if key[0].startswith(f"{prefix}spec_decode_num_")}
        if names:
            return _delta(first, last, prefix, n)
    if (SGLANG_STEPS, "") in last:
        return _sglang_delta(first, last)
    return CounterDelta(None, (
        "speculation is not active: the metrics have no spec_decode counter "
        "(an engine without a speculative config, or with its stats switched off, exports none)",
    ))  # fmt: skip


def _delta(
    first: Mapping[tuple[str, str], float], last: Mapping[tuple[str, str], float], prefix: str, n: int | None
) -> CounterDelta:
    def moved(name: str, position: str = "") -> float:
        key = (f"{prefix}spec_decode_num_{name}_total", position)
        return last.get(key, 0.0) - first.get(key, 0.0)

    if gone := sorted({key[0] for key in first if "spec_decode_num_" in key[0]} - {key[0] for key in last}):
        return CounterDelta(None, (f"counters vanished between the dumps ({gone[0]}): the engine changed",))
    drafts, drafted, accepted = moved("drafts"), moved("draft_tokens"), moved("accepted_tokens")
    positions = [p for name, p in last if name == f"{prefix}spec_decode_num_accepted_tokens_per_pos_total"]
    if strange := [p for p in positions if not re.fullmatch("[0-9]{1,4}", p)]:
        return CounterDelta(None, (
            f"a per-position counter has the position {strange[0]!r}, which is no number: a_k cannot be told from it",
        ))  # fmt: skip
    reached = [moved("accepted_tokens_per_pos", p) for p in sorted(positions, key=int)]
    if not _finite([drafts, drafted, accepted, *reached]):
        return NOT_FINITE
    if min([drafts, drafted, accepted, *reached]) < 0:
        return CounterDelta(None, ("counters went backwards: the engine restarted between the dumps, take them again",))
    if drafts == 0:
        return CounterDelta(
            None, ("no drafts between the dumps: no request was decoded, or nothing was proposed",), drafts=0
        )
    return _checked(drafts, drafted, accepted, reached, n)


def _checked(drafts: float, drafted: float, accepted: float, reached: list[float], n: int | None) -> CounterDelta:
    """Counts with every contradiction named; a figure that cannot be is no figure."""
    reasons = []
    if accepted > drafted:
        return CounterDelta(
            None, (f"accepted ({accepted:.0f}) is more than drafted ({drafted:.0f}): not one engine's dumps",)
        )
    per_step = drafted / drafts
    told_n = n or (round(per_step) if abs(per_step - round(per_step)) < 1e-9 else len(reached) or None)
    missing = accepted - sum(reached)
    if reached and told_n and told_n == len(reached) + 1 and missing > 0:
        reasons.append(
            f"{len(reached)} positions are printed but {told_n} tokens are drafted per step: "
            f"a_{told_n} = {missing / drafts:.3f} follows from the accepted total"
        )
        reached = [*reached, missing]
    elif reached and abs(missing) > 1e-9:
        return CounterDelta(None, (
            f"positions add up to {sum(reached):.0f} but {accepted:.0f} tokens were accepted: not one engine's dumps",
        ))  # fmt: skip
    if not reached:
        reasons.append("a_k is undefined: the engine has no per-position counters")
    if told_n is None or abs(per_step - told_n) > 1e-9:
        reasons.append(
            f"{per_step:.2f} tokens were drafted per step, so steps differ in length: alpha takes every step that "
            "accepted less than N for rejected, and is a lower bound"
        )
    width = max(len(reached), told_n or 0)
    full = reached[told_n - 1] if told_n and len(reached) >= told_n else 0.0
    padded = tuple(int(value) for value in reached + [0.0] * (width - len(reached)))
    counts = AcceptanceCounts(int(drafts), int(accepted), padded if reached else (), int(full), int(drafted))
    if counts.dead is not None:
        reasons.insert(0, counts.dead)
    return CounterDelta(counts, tuple(reasons), drafts=drafts)


def _sglang_delta(first: Mapping[tuple[str, str], float], last: Mapping[tuple[str, str], float]) -> CounterDelta:
    """tau from SGLang's counters, which tick when a request finishes: one token of each came from its prefill."""

    def moved(name: str) -> float:
        return last.get((f"sglang:{name}", ""), 0.0) - first.get((f"sglang:{name}", ""), 0.0)

    steps = moved("spec_verify_calls_total")
    tokens, requests = moved("generation_tokens_total"), moved("num_requests_total")
    if not _finite([steps, tokens, requests]):
        return NOT_FINITE
    if steps < 0 or tokens < 0:
        return CounterDelta(None, ("counters went backwards: the engine restarted between the dumps, take them again",))
    if steps == 0:
        return CounterDelta(None, ("no verify step between the dumps: SGLang counts one when its request finishes",))
    reason = "SGLang counts no accepted drafts: only tau is known (from tokens, short by the last step's cut)"
    return CounterDelta(None, (reason,), tau_only=(tokens - requests) / steps, drafts=steps)


def _finite(moved: Sequence[float]) -> bool:
    """A sample may be NaN or infinite, which no comparison stops."""
    return all(map(math.isfinite, moved))


def _with_total(name: str) -> str:
    """Counters may be written with or without `_total`."""
    return f"{name}_total" if "spec_decode_num_" in name and not name.endswith("_total") else name

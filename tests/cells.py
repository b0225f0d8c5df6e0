"""Small hand-made cells and trials: every latency and every accepted token is chosen by the test."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.measure.records import Cell, CellKey, ClientHealth, Load, RequestRecord, SpecSteps, Trial
from tuner.spec.speculation import OFF, SpecConfig

HEALTHY = ClientHealth(loop_lag_p99_s=0.001, send_lateness_p99_s=0.001, cpu_share=0.1)
C1T0 = CellKey(Load(concurrency=1), 0.0)


def request(
    index: int, tpot_s: float, *, tokens: int = 11, ttft_s: float = 0.1,
    accepted: Sequence[int] | None = None, n: int = 0, phase: str = "measured", error: str | None = None,
    sent_s: float = 0.0,
) -> RequestRecord:  # fmt: skip
    """`tokens` tokens, `tpot_s` apart; with `accepted`, one drafting step of `n` tokens for each entry."""
    spec = None
    if accepted is not None:
        histogram = tuple(list(accepted).count(j) for j in range(n + 1))
        spec = SpecSteps(histogram, n * len(accepted), tuple(accepted), (n,) * len(accepted))
        tokens = 1 + len(accepted) + sum(accepted)
    last_s = ttft_s + (tokens - 1) * tpot_s
    return RequestRecord(
        index=index, prompt=f"chat/{index}", task="chat", phase=phase, scheduled_s=sent_s, sent_s=sent_s,
        ended_s=last_s, chunks=((ttft_s, 1), (last_s, tokens)), n_in=5, n_out=tokens,
        finish=None if error else "length", error=error, spec=spec,
    )  # fmt: skip


def cell(requests: Sequence[RequestRecord], key: CellKey = C1T0, health: ClientHealth = HEALTHY) -> Cell:
    end_s = max((r.sent_s + r.ended_s for r in requests), default=0.0)
    return Cell(key, (0.0, end_s), tuple(requests), health)


def off_trial(tpots_s: Sequence[float], number: int = 1, key: CellKey = C1T0, role: str = "baseline") -> Trial:
    return Trial(number, OFF, "e", (cell([request(i, t) for i, t in enumerate(tpots_s)], key),), role=role)


def spec_trial(
    spec: SpecConfig, step_s: float, accepted: Sequence[Sequence[int]], number: int = 2, key: CellKey = C1T0
) -> Trial:
    """Every verify step takes `step_s`; `accepted[i]` is what the steps of request i accepted."""
    requests = []
    for index, steps in enumerate(accepted):
        tau = (len(steps) + sum(steps)) / len(steps)
        requests.append(request(index, step_s / tau, accepted=steps, n=spec.n))
    return Trial(number, spec, "e", (cell(requests, key),), role="explore")

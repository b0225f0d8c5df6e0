"""Whether a cell's figures can be believed: what cannot be blocks the cell, what needs a caution is said in words."""

from __future__ import annotations

from collections.abc import Iterator

from tuner.measure.acceptance import AcceptanceCounts, cell_counts
from tuner.measure.counters import counter_delta
from tuner.measure.degenerate import degenerate_text
from tuner.measure.evidence_rules import broken_text, prefix_cache
from tuner.measure.finding import Finding
from tuner.measure.records import Cell, RequestRecord
from tuner.spec.speculation import SpecConfig

__all__ = ["Finding", "check_cell"]

#: Within this of N + 1 everything is accepted: a copying task, or a broken server (field case S12).
PERFECT_WITHIN = 0.1


def check_cell(cell: Cell, spec: SpecConfig) -> tuple[Finding, ...]:
    """Every finding about one cell."""
    general = (*_lossy(cell), *_client(cell), *_requests(cell), *prefix_cache(cell), *degenerate_text(cell, spec))
    return (*general, *(() if spec.is_off else (*_acceptance(cell, spec), *broken_text(cell, spec))))


def _lossy(cell: Cell) -> Iterator[Finding]:
    if cell.lossy:
        yield Finding(
            "lossy", f"the output is not the target's, so this is not ranked beside lossless settings: {cell.lossy}"
        )


def _client(cell: Cell) -> Iterator[Finding]:
    health = cell.health
    if health.limited:
        yield Finding(
            "client-limited",
            f"the client was slow (loop lag p99 {health.loop_lag_p99_s * 1000:.0f} ms, sends late by p99 "
            f"{health.send_lateness_p99_s * 1000:.0f} ms, {health.cpu_share:.0%} of a core): latencies hold its delay",
        )


def _requests(cell: Cell) -> Iterator[Finding]:
    failed = [r for r in cell.measured if not r.ok]
    if failed:
        yield Finding(
            "failed-requests",
            f"{len(failed)} of {len(cell.measured)} requests failed, the first with: {failed[0].error}",
            blocks=len(failed) > len(cell.measured) / 2,
        )


def _acceptance(cell: Cell, spec: SpecConfig) -> Iterator[Finding]:
    counts = cell_counts(cell.completed, spec.depth)
    if counts is None:
        yield Finding("no-acceptance", "the engine told no acceptance per request: acceptance is not measured")
        return
    tau, most = counts.tau, spec.depth + 1
    if counts.drafted is not None and counts.accepted > counts.drafted:
        text = f"{counts.accepted} tokens accepted of {counts.drafted} drafted: impossible"
        yield Finding("accepted-over-drafted", text, blocks=True)
    if tau is not None and not 1 <= tau <= most + 1e-9:
        yield Finding("tau-range", f"tau {tau:.3f} is outside 1..{most}: impossible", blocks=True)
    # With N by load SGLang counts steps that were to draft nothing among those that drafted.
    if counts.dead is not None and not spec.by_load:
        yield Finding("draft-not-working", counts.dead)
    if counts.drafting_steps >= 20 and 1 + counts.accepted / counts.drafting_steps >= most - PERFECT_WITHIN:
        yield Finding(
            "everything-accepted",
            f"nearly everything is accepted (tau {tau:.2f} of {most}): read the text; a copying task is true but not "
            "typical, a repeated token means a broken server",
        )
    yield from _cross_check(cell, counts, spec)


def _cross_check(cell: Cell, counts: AcceptanceCounts, spec: SpecConfig) -> Iterator[Finding]:
    """Records against the engine's own counters around the drained cell, over every request in it."""
    if cell.counters_before is None or cell.counters_after is None:
        return
    delta = counter_delta(cell.counters_before, cell.counters_after, spec.n or None)
    if delta.counts is None:
        if delta.tau_only is None and counts.drafting_steps:
            yield Finding("counters", f"the engine's counters give no figure: {'; '.join(delta.reasons)}", blocks=True)
        return
    told = cell_counts(cell.requests, spec.depth)
    silent = [r for r in cell.requests if r.spec is None]
    if told is None or (told.drafting_steps, told.accepted) == (delta.counts.drafting_steps, delta.counts.accepted):
        return
    seen = f"records hold {told.drafting_steps} drafting steps and {told.accepted} accepted tokens, the engine counted "
    seen += f"{delta.counts.drafting_steps} and {delta.counts.accepted}"
    if silent and _explains(silent, delta.counts.drafting_steps - told.drafting_steps):
        yield Finding("counters-cancelled", f"{seen}: {len(silent)} requests ended without telling their steps")
    else:
        yield Finding("counters-disagree", f"{seen}: other traffic on this server, or a fault", blocks=True)


def _explains(silent: list[RequestRecord], missing_steps: int) -> bool:
    """Whether requests without details can hold the missing steps: each step emitted at least one of their tokens."""
    return 0 <= missing_steps <= sum(r.n_out for r in silent) + len(silent)

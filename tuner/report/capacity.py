"""Field case C23 from the engines' own logs: loads that fit the KV cache without speculation and no longer with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tuner.engines.preflight.memory import crowding
from tuner.measure.records import Trial, percentile

LONG = 0.95


def capacity_cautions(trials: Sequence[Trial], output_tokens: int) -> Iterator[str]:
    """One sentence a method and load. `output_tokens`: the workload's cap; prompts count at their 95th percentile."""
    off = next((t.facts.kv_cache_tokens for t in trials if t.spec.is_off and t.facts.kv_cache_tokens), None)
    prompt = _long_prompt(trials)
    if off is None or prompt is None:
        return
    told = set()
    for trial in trials:
        own = trial.facts.kv_cache_tokens
        if trial.spec.is_off or own is None:
            continue
        for load in dict.fromkeys(cell.key.load for cell in trial.cells):
            sentence = crowding(off, own, load.concurrency or 0, prompt, output_tokens)
            if sentence and (trial.spec.arm, load) not in told:
                told.add((trial.spec.arm, load))
                yield f"{trial.spec.method}: the KV cache shrank from {off:,} to {own:,} tokens: {sentence}"


def _long_prompt(trials: Sequence[Trial]) -> int | None:
    counts = [float(r.n_in) for t in trials for c in t.cells for r in c.measured if r.n_in is not None]
    return round(percentile(counts, LONG)) if counts else None

"""Rules on what was sent and what came back: a warm prefix cache, text that no sound model writes."""

from __future__ import annotations

from collections.abc import Iterator

from tuner.errors import UserError
from tuner.measure.counters import read_counters
from tuner.measure.finding import Finding
from tuner.measure.records import Cell
from tuner.spec.speculation import SpecConfig

#: A share of prompt tokens found in the prefix cache that moves latency (field case M13).
CACHED_SHARE = 0.01
#: Prompt tokens, and those of them found in the cache, by engine. SGLang's tick when a request finishes, and it exports
#: the second from the first hit on.
PREFIX_COUNTERS = (
    ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"),
    ("sglang:prompt_tokens_total", "sglang:cached_tokens_total"),
)
#: A text this long made of no more different characters is no answer (field case S12: "!!!!").
JUNK_LENGTH, JUNK_CHARACTERS = 16, 2
#: Within this of N + 1 everything is accepted.
PERFECT_WITHIN = 0.1


def prefix_cache(cell: Cell) -> Iterator[Finding]:
    """Prompts that were served from the cache: the order of the arms would decide, not the arms."""
    if cell.counters_before is None or cell.counters_after is None:
        return
    try:
        before, after = read_counters(cell.counters_before), read_counters(cell.counters_after)
    except UserError:
        return
    for names in PREFIX_COUNTERS:
        queries, hits = (after.get((name, ""), 0.0) - before.get((name, ""), 0.0) for name in names)
        if queries > 0 and hits / queries >= CACHED_SHARE:
            yield Finding(
                "prefix-cache-hits",
                f"{hits / queries:.0%} of the prompts' tokens came from the prefix cache: latencies hang on what ran "
                "before; switch prefix caching off while measuring, or give every request a prompt of its own",
            )


def broken_text(cell: Cell, spec: SpecConfig) -> Iterator[Finding]:
    """Everything accepted and the text is one character over and over: NaN logits accept any draft."""
    told = [r for r in cell.completed if r.spec is not None and r.spec.drafting_steps]
    steps = sum(r.spec.drafting_steps for r in told if r.spec)
    accepted = sum(r.spec.accepted for r in told if r.spec)
    if not steps or 1 + accepted / steps < spec.depth + 1 - PERFECT_WITHIN:
        return
    junk = [r for r in told if is_junk(r.text)]
    if junk:
        yield Finding(
            "broken-output",
            f"everything is accepted, and {len(junk)} of {len(told)} answers are junk ({junk[0].text.strip()[:12]!r}): "
            "the server is broken, its figures are none",
            blocks=True,
        )


def is_junk(text: str) -> bool:
    letters = "".join(text.split())
    return len(letters) >= JUNK_LENGTH and len(set(letters)) <= JUNK_CHARACTERS

"""What a workload's requests ask, as preflight judges it."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.engines.preflight.asked import Demand
from tuner.measure.records import percentile
from tuner.prompts import Prompt
from tuner.spec.workload import Workload

#: Bytes of UTF-8 that make a token, on average, in the vocabularies of today's models. An estimate, and told as one.
BYTES_PER_TOKEN = 4
#: Request fields that bind an answer to a grammar.
CONSTRAINTS = (
    "response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar",
    "json_schema", "regex", "ebnf", "tools",
)  # fmt: skip


def demand_of(workload: Workload, prompts: Sequence[Prompt]) -> Demand:
    """Temperatures, sampling fields of the workload and of its rows, lengths and the highest concurrency."""
    sampling = workload.sampling.body(0)
    del sampling["temperature"]
    rows = {key: value for prompt in prompts for key, value in prompt.sampling}
    fields = rows | sampling
    caps = [
        min(p.max_tokens or workload.traffic.max_output_tokens, workload.traffic.max_output_tokens) for p in prompts
    ]
    return Demand(
        temperatures=tuple(dict.fromkeys(workload.sampling.temperatures)),
        sampling=fields,
        endpoint=workload.traffic.endpoint,
        prompt_tokens=long_prompt(prompts) if prompts else None,
        estimated=True,
        output_tokens=max(caps, default=workload.traffic.max_output_tokens),
        concurrency=workload.running_limit,
        constrained=next((key for key in CONSTRAINTS if binds(fields.get(key))), None),
    )


def long_prompt(prompts: Sequence[Prompt]) -> int:
    """95th percentile of the prompts' tokens, estimated from their bytes."""
    sizes = [float(sum(len(text.encode()) for _role, text in prompt.messages)) for prompt in prompts]
    return max(1, round(percentile(sizes, 0.95) / BYTES_PER_TOKEN))


def binds(value: object) -> bool:
    """Whether a field of CONSTRAINTS that has this value binds the answer: a plain-text response format does not."""
    return bool(value) and not (isinstance(value, dict) and value.get("type") == "text")

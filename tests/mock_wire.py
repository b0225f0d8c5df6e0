"""What the mock engine puts on the wire: each flavour's stream events, Prometheus text and server information."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mock_machine import WORDS, Job, Machine, text_of, word_scores

DONE = b"data: [DONE]\n\n"


def event(data: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"


@dataclass(frozen=True)
class Wire:
    """How one request's answer is framed."""

    flavour: str
    chat: bool
    model: str
    job: Job
    body: Mapping[str, Any]
    spec_n: int
    metrics_level: str
    usage_on_chunks: bool
    usage_at_end: bool
    json: tuple[str, str] | None = None  # what stands before and after the words of an answer bound to a grammar

    def head(self) -> Iterator[bytes]:
        """vLLM's role chunk says 0 tokens; SGLang's says nothing about tokens. Completions have none."""
        if self.chat:
            usage = self._usage(0) if self.flavour == "vllm" and self.usage_on_chunks else None
            yield self._chunk({"role": "assistant", "content": ""}, None, usage)

    def tokens(self, fresh: list[int], n: int, finish: str | None, instead: str | None = None) -> Iterator[bytes]:
        """`n`: tokens so far, `fresh` included. `instead`: text that stands in for theirs."""
        text = text_of(fresh) if instead is None else instead
        if self.json is not None:
            finish = finish and "stop"
            text = (self.json[0] if n == len(fresh) else "") + text + (self.json[1] if finish else "")
        usage = self._usage(n) if self.usage_on_chunks else None
        early = finish if self.flavour == "vllm" or not self.chat else None
        yield self._chunk({"content": text} if self.chat else text, early, usage, self._logprobs(self.job, fresh, n))
        if finish is not None and early is None:
            yield self._chunk({}, finish, None)

    def tail(self, n: int) -> Iterator[bytes]:
        if self.flavour == "sglang" and self.body.get("return_spec_tokens_details") and self.spec_n:
            yield event(self._frame([]) | {"sglext": {"spec_tokens_details": sglang_details(self.job, self.spec_n)}})
        if self.usage_at_end:
            last = self._frame([]) | {"usage": self._usage(n)}
            if self.flavour == "vllm" and self.spec_n and self.metrics_level != "none":
                told = vllm_metrics(self.job, self.spec_n, self.metrics_level == "detailed")
                last["metrics"] = {"speculative_decoding": told}
            yield event(last)
        yield DONE

    def whole(self, jobs: Sequence[Job]) -> dict[str, Any]:
        """The answer when no stream was asked for: a choice a job."""
        n = sum(len(job.tokens) for job in jobs)
        return self._frame([self._choice(index, job) for index, job in enumerate(jobs)]) | {"usage": self._usage(n)}

    def _choice(self, index: int, job: Job) -> dict[str, Any]:
        text, finish = text_of(job.tokens), job.finish
        if self.json is not None:
            text, finish = self.json[0] + text + self.json[1], "stop"
        part: dict[str, Any] = {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
        part |= {"index": index, "finish_reason": finish, "logprobs": self._logprobs(job, job.tokens, len(job.tokens))}
        if self.body.get("return_token_ids"):
            name = "response_token_ids" if self.chat and self.flavour == "sglang" else "token_ids"
            part[name] = list(job.tokens)
        return part

    def _frame(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        name = f"{'chatcmpl' if self.chat else 'cmpl'}-{self.job.number}"
        return {"id": name, "object": kind, "created": 0, "model": self.model, "choices": choices}

    def _chunk(
        self, said: Any, finish: str | None, usage: dict[str, int] | None, logprobs: dict[str, Any] | None = None
    ) -> bytes:
        choice = {"index": 0, "delta" if self.chat else "text": said, "logprobs": logprobs, "finish_reason": finish}
        frame = self._frame([choice])
        return event(frame | {"usage": usage} if usage is not None else frame)

    def _usage(self, n: int) -> dict[str, int]:
        return {"prompt_tokens": self.job.n_in, "total_tokens": self.job.n_in + n, "completion_tokens": n}

    def _logprobs(self, job: Job, fresh: list[int], n: int) -> dict[str, Any] | None:
        """Of the model at temperature 1, whatever temperature was sampled at, as vLLM's raw log-probabilities."""
        wanted = self.body.get("logprobs")
        if not wanted:
            return None
        top = int((self.body.get("top_logprobs") or 0) if self.chat else wanted)
        tables = [_log_softmax(word_scores(job, n - len(fresh) + i)) for i in range(len(fresh))]
        rows = []
        for token, table in zip(fresh, tables, strict=True):
            best = sorted(range(len(WORDS)), key=lambda w: -table[w])[:top]
            rows.append((token, table, best))
        if self.chat:
            return {"content": [self._row(token, table) | {"top_logprobs": [self._row(w, table) for w in best]}
                                for token, table, best in rows]}  # fmt: skip
        return {
            "tokens": [self._name(token) for token in fresh],
            "token_logprobs": [table[token] for token, table, _ in rows],
            "top_logprobs": [{self._name(w): table[w] for w in best} for _, table, best in rows],
        }

    def _row(self, word: int, table: list[float]) -> dict[str, Any]:
        return {"token": self._name(word), "logprob": table[word], "bytes": list(f" {WORDS[word]}".encode())}

    def _name(self, word: int) -> str:
        by_id = self.flavour == "vllm" and self.body.get("return_tokens_as_token_ids")
        return f"token_id:{word}" if by_id else f" {WORDS[word]}"


def constrained(body: Mapping[str, Any]) -> bool:
    """Whether the answer is bound to a grammar."""
    return any(body.get(name) for name in ("response_format", "structured_outputs", "json_schema", "guided_json"))


def json_framing(body: Mapping[str, Any], cut: bool) -> tuple[str, str] | None:
    """`{"answer": "..."}` around the words, as any schema here may have it; without its end where it is cut."""
    return ('{"answer": "', "" if cut else '"}') if constrained(body) else None


def _log_softmax(scores: list[float]) -> list[float]:
    total = math.log(sum(math.exp(score) for score in scores))
    return [score - total for score in scores]


def vllm_metrics(job: Job, n: int, detailed: bool) -> dict[str, Any]:
    steps, accepted, drafted = len(job.accepted), sum(job.accepted), sum(job.drafted)
    told: dict[str, Any] = {
        "mean_acceptance_length": 1 + accepted / steps if steps else 1.0,
        "draft_acceptance_rate": accepted / drafted if drafted else 0.0,
        "acceptance_histogram": job.histogram(n),
        "num_spec_steps": steps,
        "num_accepted_draft_tokens": accepted,
        "num_draft_tokens": drafted,
        "num_spec_tokens": n,
    }
    if detailed and steps:
        told |= {"per_step_accepted": job.accepted, "per_step_drafted": job.drafted}
    return told


def sglang_details(job: Job, n: int) -> dict[str, Any]:
    correct, proposed = sum(job.accepted), sum(job.drafted)
    return {
        "spec_accept_rate": correct / proposed if proposed else 0.0,
        "spec_accept_length": len(job.tokens) / job.verify_steps if job.verify_steps else 0.0,
        "spec_cap_length": 0.0,
        "spec_block_accept_length": 0.0,
        "spec_num_correct_drafts": correct,
        "spec_num_proposed_drafts": proposed,
        "spec_verify_ct": job.verify_steps,
        "spec_correct_drafts_histogram": job.histogram(n)[: max(job.accepted, default=-1) + 1],
        "spec_cap_lens_histogram": [],
    }


def prometheus_text(flavour: str, machine: Machine, model: str) -> str:
    return (_vllm_text if flavour == "vllm" else _sglang_text)(machine, model)


def _family(name: str, kind: str, rows: Mapping[str, float]) -> str:
    """One metric family in the text format of prometheus_client, `_created` series included; rows: labels -> value."""
    lines = [f"# HELP {name} {name}.", f"# TYPE {name} {kind}"]
    lines += [f"{name}{{{labels}}} {float(value)}" for labels, value in rows.items()]
    if kind == "counter":
        created = name.removesuffix("_total") + "_created"
        lines += [f"# HELP {created} {name}.", f"# TYPE {created} gauge"]
        lines += [f"{created}{{{labels}}} 1.7e+09" for labels in rows]
    return "\n".join(lines) + "\n"


def _vllm_text(machine: Machine, model: str) -> str:
    c, labels = machine.counters, f'engine="0",model_name="{model}"'
    text = _family("vllm:num_requests_running", "gauge", {labels: len(machine.running)})
    text += _family("vllm:num_requests_waiting", "gauge", {labels: len(machine.waiting)})
    totals = {"prompt_tokens": c.prompt, "generation_tokens": c.generated, "prefix_cache_queries": c.cache_queries,
              "prefix_cache_hits": c.cache_hits}  # fmt: skip
    if machine.spec.n:
        totals |= {"spec_decode_num_drafts": c.drafts, "spec_decode_num_draft_tokens": c.drafted,
                   "spec_decode_num_accepted_tokens": c.accepted}  # fmt: skip
    for name, value in totals.items():
        text += _family(f"vllm:{name}_total", "counter", {labels: value})
    reasons = {f'{labels},finished_reason="{reason}"': c.finished.get(reason, 0) for reason in ("stop", "length")}
    text += _family("vllm:request_success_total", "counter", reasons)
    if machine.spec.n:
        positions = {f'{labels},position="{i}"': count for i, count in enumerate(c.per_position)}
        text += _family("vllm:spec_decode_num_accepted_tokens_per_pos_total", "counter", positions)
    return text


def _sglang_text(machine: Machine, model: str) -> str:
    """SGLang adds a request's tokens and verify steps when it finishes; here aborted requests add nothing."""
    labels = f'engine_type="unified",model_name="{model}",pp_rank="0",tp_rank="0"'
    done = [job for job in machine.jobs if job.finish is not None]
    steps = sum(job.verify_steps for job in done)
    gauges: dict[str, float] = {"num_running_reqs": len(machine.running), "num_queue_reqs": len(machine.waiting),
                                "max_total_num_tokens": machine.sim.kv_cache_tokens}  # fmt: skip
    totals = {"prompt_tokens": sum(job.n_in for job in done), "generation_tokens": sum(len(j.tokens) for j in done),
              "num_requests": len(done), "num_aborted_requests": machine.counters.aborted}  # fmt: skip
    if machine.spec.n:
        totals["spec_verify_calls"] = steps
        correct, proposed = (sum(sum(getattr(job, name)) for job in done) for name in ("accepted", "drafted"))
        gauges["spec_accept_length"] = 1 + correct / steps if steps else 0.0
        gauges["spec_accept_rate"] = correct / proposed if proposed else 0.0
    text = "".join(_family(f"sglang:{name}", "gauge", {labels: value}) for name, value in gauges.items())
    return text + "".join(_family(f"sglang:{name}_total", "counter", {labels: v}) for name, v in totals.items())


def server_info(machine: Machine, args: Mapping[str, Any], version: str, since_job: int) -> dict[str, Any]:
    """SGLang's /server_info: resolved arguments, and the lifetime accept length since the last flush."""
    jobs = machine.jobs[since_job:]
    steps = sum(job.verify_steps for job in jobs)
    state: dict[str, Any] = {"effective_max_running_requests_per_dp": machine.max_running, "memory_usage": {}}
    if machine.spec.n and steps:
        state["avg_spec_accept_length"] = 1 + sum(sum(job.accepted) for job in jobs) / steps
    return {**args, "internal_states": [state], "version": version}

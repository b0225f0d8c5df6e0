"""Tables of facts beside the figures: launches, engines, capacity, the client's health, failures, the host."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator

import yaml

from tuner.measure.records import Cell, Trial
from tuner.report.data import ReportInput
from tuner.report.figures import NOT_MEASURED, cell_text, change, count
from tuner.report.redact import shown_argv, shown_workload
from tuner.report.tables import Table, table
from tuner.run.host import Gpu


def launch_table(data: ReportInput) -> Table:
    """A row a launch, failed ones included, with the capacity for KV tokens and how it changed against off."""
    columns = (
        "launch", "setting", "why launched", "status", "ready after, s", "engine version", "runner",
        "KV capacity, tokens", "KV capacity against off",
    )  # fmt: skip
    off = next((t.facts.kv_cache_tokens for t in _trials(data) if t.spec.is_off and t.facts.kv_cache_tokens), None)
    return table(columns, (_launch_row(trial, off) for trial in _trials(data)))


def failed_trials(data: ReportInput) -> Table:
    rows = [(str(t.number), t.spec.label, t.status) for t in _trials(data) if not t.ok]
    return table(("launch", "setting", "cause"), rows)


def blocked_cells(data: ReportInput) -> Table:
    """Cells with a figure that cannot be: they enter no table of figures and no ranking."""
    rows = [
        (str(one.trial.number), one.spec.label, cell_text(key), finding.text)
        for one in data.evidence.tried
        for key, findings in one.findings.items()
        for finding in findings
        if finding.blocks
    ]
    return table(("launch", "setting", "cell", "finding"), rows)


def failed_requests(data: ReportInput) -> Table:
    """Measured requests that failed, by launch, cell and error."""
    found: Counter[tuple[str, str, str, str]] = Counter()
    for trial, cell in _cells(data):
        place = (str(trial.number), trial.spec.label, cell_text(cell.key))
        found.update((*place, (r.error or "")[:200]) for r in cell.measured if not r.ok)
    return table(("launch", "setting", "cell", "error", "requests"), ((*key, str(n)) for key, n in found.items()))


def client_sentence(data: ReportInput) -> str:
    """Whether the load client itself held anything up."""
    seen = [(trial, cell) for trial, cell in _cells(data)]
    if not seen:
        return f"Client self-check: {NOT_MEASURED}."
    limited = [f"launch {t.number} at {cell_text(c.key)}" for t, c in seen if c.health.limited]
    lag = max(c.health.loop_lag_p99_s for _, c in seen) * 1000
    late = max(c.health.send_lateness_p99_s for _, c in seen) * 1000
    cpu = max(c.health.cpu_share for _, c in seen)
    worst = f"worst of {len(seen)} cells: event-loop lag p99 {lag:.1f} ms, sends late by p99 {late:.1f} ms, "
    worst += f"{cpu:.0%} of a core"
    if limited:
        where = f"{len(limited)} cells ({'; '.join(limited)})"
        return f"The client was limited in {where}, whose latencies hold its delay; {worst}."
    return f"The client kept up in every cell; {worst}."


def corrections(data: ReportInput) -> tuple[str, ...]:
    """Corrections applied to the engine and notes from its installation, by environment."""
    lines = []
    for env in data.environments:
        named = "; ".join(env.corrections) or "none"
        lines.append(f"{env.name} ({env.engine} {env.version}, {env.device}): corrections applied: {named}.")
        lines += [f"{env.name}: {note}" for note in env.notes]
    return tuple(lines)


def engine_warnings(data: ReportInput) -> tuple[str, ...]:
    """What engines warned of while they started, each once."""
    return tuple(dict.fromkeys(w for trial in _trials(data) for w in trial.facts.warnings))


def resolved(data: ReportInput) -> Table:
    """What engines said they resolved their options to, and the launches that said so."""
    said: dict[tuple[str, str], list[str]] = {}
    for trial in _trials(data):
        for option in trial.facts.resolved:
            said.setdefault(option, []).append(str(trial.number))
    return table(("option", "resolved to", "launches"), ((*o, ", ".join(said[o])) for o in sorted(said)))


def commands(data: ReportInput) -> tuple[tuple[str, str], ...]:
    """(title, shell line) of every launch as it was measured, environment variables first, secrets left out."""
    lines = []
    for trial in _trials(data):
        env = [f"{name}={shlex.quote(value)}" for name, value in trial.env]
        line = " ".join([*env, shlex.join(shown_argv(trial.command))])
        lines.append((f"launch {trial.number}: {trial.spec.label} ({trial.role})", line))
    return tuple(lines)


def host_table(data: ReportInput) -> Table:
    host = data.header.host
    gpus = [f"{g.name}, {count(g.memory_mib)} MiB, driver {g.driver}, power limit {_watts(g)}" for g in host.gpus]
    rows = [
        ("CPU", host.cpu),
        ("usable cores", str(host.cores)),
        ("CPU quota, cores", "no limit" if host.cpu_quota is None else f"{host.cpu_quota:g}"),
        ("memory, GiB", f"{host.memory_gib:g}"),
        ("GPUs", "; ".join(gpus) or "none"),
        ("load average before the study, 1 min", f"{host.load_1m:g}"),
        ("system", host.system),
        ("Python", host.python),
        ("tuner", host.tuner),
        ("read at", host.at),
    ]
    return table(("host", ""), rows)


def prompts_table(data: ReportInput) -> Table:
    """The measured prompts by task, with their names: all arms ran the same ones."""
    by_task: dict[str, dict[str, None]] = {}
    for _, cell in _cells(data):
        for request in cell.measured:
            by_task.setdefault(request.task, {})[request.prompt] = None
    rows = ((task, str(len(names)), ", ".join(sorted(names))) for task, names in sorted(by_task.items()))
    return table(("task", "prompts", "names"), rows)


def workload_yaml(data: ReportInput) -> str:
    dumped = data.workload.model_dump(mode="json", exclude_none=True)
    text: str = yaml.safe_dump(shown_workload(dumped), sort_keys=False, allow_unicode=True)
    return text


def _launch_row(trial: Trial, off: int | None) -> tuple[str, ...]:
    facts = trial.facts
    against = change(facts.kv_cache_tokens / off - 1) if facts.kv_cache_tokens and off else NOT_MEASURED
    return (
        str(trial.number),
        trial.spec.label,
        f"{trial.role}: {trial.why}",
        trial.status,
        NOT_MEASURED if trial.ready_s is None else f"{trial.ready_s:.1f}",
        facts.version or NOT_MEASURED,
        facts.runner or NOT_MEASURED,
        count(facts.kv_cache_tokens),
        against,
    )


def _trials(data: ReportInput) -> Iterator[Trial]:
    return (one.trial for one in data.evidence.tried)


def _cells(data: ReportInput) -> Iterator[tuple[Trial, Cell]]:
    return ((trial, cell) for trial in _trials(data) for cell in trial.cells)


def _watts(gpu: Gpu) -> str:
    return NOT_MEASURED if gpu.power_limit_w is None else f"{gpu.power_limit_w:g} W"

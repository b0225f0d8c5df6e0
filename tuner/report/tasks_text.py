"""Advice task by task: what each would choose by itself, and what the one setting for all traffic does to it."""

from __future__ import annotations

from collections.abc import Iterator

from tuner.decide.tasks import LEAST_PROMPTS, TaskAdvice, few_prompts, regret_over_tasks
from tuner.report.data import ReportInput
from tuner.report.figures import cell_text, cells_text, listed, ratio
from tuner.report.tables import Table, table


def task_table(data: ReportInput) -> Table:
    columns = (
        "task", "share of requests", "advice for it alone", "the one setting here, against off", "it gives up, mean",
        "at most", "where",
    )  # fmt: skip
    is_off = data.recommendation.overall.best.is_off
    return table(columns, (_row(advice, is_off) for advice in data.tasks))


def task_lines(data: ReportInput) -> tuple[str, ...]:
    """What a mix of tasks means for one setting, and which tasks are too few to be judged; empty where all are."""
    return (*_lines(data), *_too_few(data)) if data.tasks else ()


def alone(advice: TaskAdvice) -> str:
    """`eagle3 N=2 at concurrency 1 and 4; off at concurrency 8`."""
    keys = [v.key for v in advice.verdicts]
    settings = dict.fromkeys(v.best for v in advice.verdicts)
    parts = []
    for spec in sorted(settings, key=lambda spec: spec.is_off):
        where = [v.key for v in advice.verdicts if v.best == spec]
        parts.append(spec.label if len(settings) == 1 else f"{spec.label} at {cells_text(where, keys)}")
    return "; ".join(parts)


def _too_few(data: ReportInput) -> Iterator[str]:
    missing = few_prompts(data.evidence)
    if missing:
        yield (
            f"Under {LEAST_PROMPTS} prompts in some cell, too few to judge by themselves: {listed(missing)}. More "
            "measure.requests would tell."
        )


def _row(advice: TaskAdvice, is_off: bool) -> tuple[str, ...]:
    worst = advice.worst_loss
    lost = bool(worst and worst[1] > 0)
    gain = "it is off" if is_off else ratio(advice.gain)
    return (
        advice.task, f"{advice.share:.0%}", alone(advice), gain, f"{advice.regret:.1%}",
        f"{worst[1]:.1%}" if worst else "0.0%", cell_text(worst[0]) if worst and lost else "nowhere",
    )  # fmt: skip


def _lines(data: ReportInput) -> Iterator[str]:
    best = data.recommendation.overall.best
    label = best.label if not best.is_off else "off"
    losing = [one for one in data.tasks if one.gain is not None and one.gain.high < 1]
    if losing:
        worst = min(losing, key=lambda one: one.gain.value if one.gain else 1.0)
        yield (
            f"{label} is slower than off on {listed(one.task for one in losing)} (worst: {worst.task}, "
            f"{ratio(worst.gain)} over its cells): route it to a replica without speculation if you can."
        )
    elif not best.is_off:
        yield f"{label} is shown to be worse than off on no task, over all its cells."
    if len(data.tasks) < 2:
        return
    spread = regret_over_tasks(data.tasks)
    if spread is not None:
        yield (
            f"One setting for every task and cell ({label}) gives up {spread:.1%} of the mean against each task's own "
            "advice in each cell, weighted by the tasks' shares."
        )
    if len({alone(one) for one in data.tasks}) == 1:
        yield "Every task by itself gets the same advice."

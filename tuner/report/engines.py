"""The page of a study over several engines: which one, by how much, and one table with one meaning of N."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tuner.decide.across import Duel, Row, best_engine, duels, rows
from tuner.decide.evidence import Evidence
from tuner.decide.launch_luck import PRIOR_SD, launch_luck
from tuner.decide.verdict import mean_text
from tuner.measure.statistics import Estimate
from tuner.report.advice import OBJECTIVES, headline
from tuner.report.data import EnginesCompared, ReportInput
from tuner.report.drift import drift_sentence
from tuner.report.engine_cautions import replaced_text
from tuner.report.figures import NOT_MEASURED, cell_text, figure, ms, ratio
from tuner.report.page import MOST_CAUTIONS, environment_text, launches, machine_text
from tuner.report.rendering import render
from tuner.report.tables import Table, table
from tuner.spec.speculation import SpecConfig

NOT_TOLD = "not told apart"


def compare_engines(data: Mapping[str, ReportInput]) -> EnginesCompared:
    evidence = {name: one.evidence for name, one in data.items()}
    duelled = duels(evidence, {name: one.recommendation for name, one in data.items()})
    builds = [text for one in data.values() if one.environment and (text := replaced_text(one.environment))]
    sentence = "; ".join([engines_verdict(duelled, list(data)), *builds])
    return EnginesCompared(f"{sentence}.", best_engine(duelled, list(data)), duelled)


def engines_page(data: Mapping[str, ReportInput], compared: EnginesCompared) -> str:
    """Markdown over all engines; each engine's own report lies in a folder of its name beside it."""
    evidence = {name: one.evidence for name, one in data.items()}
    first = next(iter(data.values()))
    deployed = data[compared.best] if compared.best else first
    told = rows(evidence)
    return render(
        "engines.md.j2",
        {
            "study": first.header,
            "status": first.status,
            "verdict": compared.sentence,
            "cautions": _cautions(data),
            "how_sure": _how_sure(data),
            "best": compared.best,
            "deployed": compared.best or next(iter(data)),
            "environment": environment_text(deployed),
            "launch": launches(deployed)[0],
            "advice": {name: headline(one) for name, one in data.items()},
            "duels": _duel_table(compared.duels, data),
            "settings": _settings_table(told, evidence, next(iter(data))),
            "lossy": [
                f"{r.engine}, {r.spec.label}, {cell_text(r.key)}: {r.lossy}" for r in told if r.lossy is not None
            ],
        },
    )


def engines_verdict(duelled: Sequence[Duel], engines: Sequence[str]) -> str:
    """The engine that wins, or that none does: one sentence without its end."""
    best = best_engine(duelled, engines)
    if best is None:
        return f"No engine is told apart as the best of {', '.join(engines)}, each at its own advised setting"
    gains = []
    for duel in duelled:
        if best in (duel.first, duel.second) and (claim := duel.claim):
            other = duel.first if duel.second == best else duel.second
            forward = claim if duel.second == best else claim.inverse()
            gains.append(f"{mean_text(forward)} against {other}")
    return f"{best} is the best engine, each at its own advised setting: {'; '.join(gains)}"


def _cautions(data: Mapping[str, ReportInput]) -> list[str]:
    """The machine, then engine by engine its build and what its own report warns of."""
    lines = [f"Measured on {machine_text(next(iter(data.values())))}; another machine may rank the engines otherwise"]
    for name, one in data.items():
        notes = one.environment.notes if one.environment else ()
        lines.append(f"{name}: {'; '.join([environment_text(one), *notes])}")
        lines += [text if text.startswith(f"{name}: ") else f"{name}: {text}" for text in one.cautions[:MOST_CAUTIONS]]
        if (more := len(one.cautions) - MOST_CAUTIONS) > 0:
            lines.append(f"{name}: and {more} more in [its report]({name}/report.md#cautions-and-self-checks)")
    return lines


def _how_sure(data: Mapping[str, ReportInput]) -> list[str]:
    """How far off moved on each engine, and what that does to the claim."""
    lines = []
    for name, one in data.items():
        held = f"A relaunch is held to move {OBJECTIVES[one.evidence.objective]} by {launch_luck(one.evidence):.1%}"
        lines.append(f"{name}: {drift_sentence(one.evidence, one.verdicts)} {held}.")
    return [
        *lines,
        "One engine against another is told from the first launch of each one's setting. Its interval holds the spread "
        "between requests and what both relaunches are held to move (one standard deviation each, from the "
        f"{PRIOR_SD:.0%} that is held beforehand and the engine's drift of off), added as variances; an engine is "
        "called better where that interval does not hold 1 and the ratio is no tie (within 1% of 1).",
    ]


def _duel_table(duelled: Sequence[Duel], data: Mapping[str, ReportInput]) -> Table:
    def advised(engine: str) -> str:
        return data[engine].recommendation.overall.best.label

    found = (
        (
            duel.second, advised(duel.second), duel.first, advised(duel.first),
            mean_text(claim) if (claim := duel.claim) else NOT_MEASURED, duel.winner or NOT_TOLD,
        )
        for duel in duelled
    )  # fmt: skip
    return table(("engine", "its setting", "against", "its setting", "times better (geometric mean)", "winner"), found)


def _settings_table(told: Sequence[Row], evidence: Mapping[str, Evidence], base: str) -> Table:
    columns = (
        "load and temperature", "engine", "setting", "N, drafted per verify step", "n", "TPOT p50, ms", "tau", "alpha",
        f"against off of {base}",
    )  # fmt: skip
    found = (
        (
            cell_text(row.key), row.engine, row.spec.label, _n(row.spec), str(row.cell.requests),
            ms(row.cell.tpot_p50_s, row.cell.requests), _acceptance(row, row.cell.tau),
            _acceptance(row, row.cell.alpha),
            "not ranked: lossy" if row.lossy else ratio(row.ratio),
        )
        for row in told
    )  # fmt: skip
    return table(columns, found)


def _acceptance(row: Row, estimate: Estimate | None) -> str:
    return "" if row.spec.is_off else figure(estimate, row.cell.requests)


def _n(spec: SpecConfig) -> str:
    """On a chain its N; a tree drafts its nodes but the root, and accepts at most its depth."""
    if spec.tree:
        return f"{spec.tree.nodes - 1} in a tree of depth {spec.tree.depth}"
    return f"at most {spec.n}, by load" if spec.by_load else str(spec.n)

"""The page of a study over several engines: which one, by how much, and one table with one meaning of N."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tuner.decide.across import Duel, Row, best_engine, duels, rows
from tuner.decide.evidence import Evidence
from tuner.measure.statistics import Estimate
from tuner.report.advice import headline
from tuner.report.data import ReportInput
from tuner.report.figures import cell_text, figure, ms, ratio
from tuner.report.rendering import render
from tuner.report.tables import Table, table
from tuner.spec.speculation import SpecConfig

NOT_TOLD = "not told apart"


def engines_page(data: Mapping[str, ReportInput]) -> str:
    """Markdown over all engines; each engine's own report lies in a folder of its name beside it."""
    evidence = {name: one.evidence for name, one in data.items()}
    duelled = duels(evidence, {name: one.recommendation for name, one in data.items()})
    first = next(iter(data.values()))
    told = rows(evidence)
    return render(
        "engines.md.j2",
        {
            "study": first.header,
            "verdict": engines_verdict(duelled, list(data)),
            "advice": {name: headline(one) for name, one in data.items()},
            "duels": _duel_table(duelled, data),
            "settings": _settings_table(told, evidence, first.header.environments[0]["name"]),
            "lossy": [
                f"{r.engine}, {r.spec.label}, {cell_text(r.key)}: {r.lossy}" for r in told if r.lossy is not None
            ],
        },
    )


def engines_verdict(duelled: Sequence[Duel], engines: Sequence[str]) -> str:
    """One sentence: the engine that wins, or that none does."""
    best = best_engine(duelled, engines)
    if best is None:
        return f"No engine is told apart as the best of {', '.join(engines)}, each at its own advised setting."
    gains = []
    for duel in duelled:
        if best in (duel.first, duel.second) and duel.ratio:
            other = duel.first if duel.second == best else duel.second
            forward = duel.ratio if duel.second == best else duel.ratio.inverse()
            gains.append(f"{ratio(forward)} against {other}")
    return f"{best} is the best engine, each at its own advised setting: {'; '.join(gains)}."


def winner(data: Mapping[str, ReportInput]) -> str:
    """The engine whose files are the ones to deploy: the best, or the first named where none is told apart."""
    evidence = {name: one.evidence for name, one in data.items()}
    duelled = duels(evidence, {name: one.recommendation for name, one in data.items()})
    return best_engine(duelled, list(data)) or next(iter(data))


def _duel_table(duelled: Sequence[Duel], data: Mapping[str, ReportInput]) -> Table:
    def advised(engine: str) -> str:
        return data[engine].recommendation.overall.best.label

    found = (
        (duel.second, advised(duel.second), duel.first, advised(duel.first), ratio(duel.ratio), duel.winner or NOT_TOLD)
        for duel in duelled
    )
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

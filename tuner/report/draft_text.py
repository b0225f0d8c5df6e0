"""How good a draft must be, for people: a table by cell, and sentences on what is missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tuner.decide.break_even import Need
from tuner.decide.draft_need import GAINS
from tuner.measure.records import CellKey, Load
from tuner.report.data import ReportInput
from tuner.report.draft_needs import DraftNeed, Standing
from tuner.report.figures import alphas, cells_text, figure, listed, loads_text, ratio
from tuner.report.tables import Table, table
from tuner.report.verdict_tables import BELOW_1, place
from tuner.spec.speculation import LOOKUP_METHODS, SpecConfig

PAYS, MORE = GAINS
COLUMNS = (
    "load", "temperature", "best setting", "pays above", f"{MORE:g}x above", "if every token were accepted", "tau",
    "missing to pay", f"missing to {MORE:g}x",
)  # fmt: skip


def need_table(needs: Sequence[DraftNeed]) -> Table:
    """A row a cell and way to draft."""
    return table(COLUMNS, (_row(one) for one in needs))


def need_lines(data: ReportInput, needs: Sequence[DraftNeed]) -> tuple[str, ...]:
    """Of each way to draft where it falls short, where no draft can do better, and which N asks least of a draft."""
    keys, lines = [v.key for v in data.verdicts], []
    for way in dict.fromkeys(_way(one.spec) for one in needs):
        own = [one for one in needs if _way(one.spec) == way]
        lines += [*_standings(way, own, keys), *_least(way, own)]
    return tuple(lines)


def one_line(needs: Sequence[DraftNeed]) -> str:
    """For a skill file: what a draft must bring at each load, at the lowest temperature; empty for lookups alone."""
    drafts = [one for one in needs if one.spec.method not in LOOKUP_METHODS and one.reading == "agrees"]
    if not drafts:
        return ""
    way = _way(max(drafts, key=lambda one: one.tau_value / one.cost.value).spec)
    own = [one for one in drafts if _way(one.spec) == way]
    cold = min(one.key.temperature for one in own)
    shown = [one for one in own if one.key.temperature == cold]
    return "How good a draft must be, by its verify steps alone: " + "; ".join(_short(one) for one in shown) + "."


def trained(needs: Sequence[DraftNeed]) -> tuple[SpecConfig, ...]:
    """Settings with a trained draft that falls short somewhere of what a better one could reach."""
    drafts = (one for one in needs if one.spec.method not in LOOKUP_METHODS)
    return tuple(dict.fromkeys(one.spec for one in drafts if any(one.standing(gain) == "short" for gain in GAINS)))


def _way(spec: SpecConfig) -> str:
    return f"{spec.way} tree" if spec.tree else spec.way


def _row(one: DraftNeed) -> tuple[str, ...]:
    start = (*place(one.key), _setting(one))
    if one.reading == "undefined":
        return (*start, BELOW_1, BELOW_1, BELOW_1, _tau(one), BELOW_1, BELOW_1)
    asked = (_asked(one, at) for at in range(len(one.needs)))
    most = ratio(one.most) if one.most else ""
    return (*start, *asked, most, _tau(one), *(_missing(one, need) for need in one.needs))


def _setting(one: DraftNeed) -> str:
    return one.spec.label if one.tau else f"{one.spec.label} (not launched: its step time is taken {_basis(one)})"


def _basis(one: DraftNeed) -> str:
    return {"between N": "between measured N", "between loads": "between measured loads"}.get(one.basis, "as measured")


def _asked(one: DraftNeed, at: int) -> str:
    need = one.needs[at]
    if not need.reachable:
        return f"{_never(one)}{_elsewhere(one.least[at])}"
    said = f"tau {figure(need.tau, need.tau.n, decimals=2)}"
    return f"{said}, alpha {alphas(need.alpha)}" if one.alpha_defined else said


def _never(one: DraftNeed) -> str:
    if one.most is None:
        return f"never: a step brings {one.spec.depth + 1} tokens at most"
    where = "" if one.spec.tree else f" at N = {one.spec.n}"
    return f"no draft can{where}: even if every token were accepted it would be {one.most.value:.2f}x"


def _elsewhere(least: tuple[int, float] | None) -> str:
    return f"; at N = {least[0]} alpha {least[1]:.3f} would do" if least else ""


def _tau(one: DraftNeed) -> str:
    if one.tau is None:
        return f"{one.tau_value:.2f}, predicted{_as_alpha(one)}"
    return f"{figure(one.tau, decimals=2)}{_as_alpha(one)}"


def _as_alpha(one: DraftNeed) -> str:
    return f" (alpha {one.own_alpha:.3f})" if one.own_alpha is not None else ""


def _missing(one: DraftNeed, need: Need) -> str:
    if one.reading == "contradicts":
        return "step times do not explain the measured gain: go by that one"
    if not need.reachable:
        return "out of reach"
    lacks = need.missing(one.tau_value)
    unsure = ", but the intervals do not tell" if one.unsure(need) else ""
    return f"{lacks:.2f}{unsure}" if lacks else f"nothing{unsure}"


#: By the gain that is asked for and where the draft is: what is said of the cells.
SAID: tuple[tuple[float, Standing, str], ...] = (
    (PAYS, "short", "{way} falls short of paying at {where}{better}."),
    (PAYS, "beyond", "{way} cannot pay at {where}, not even if every token were accepted."),
    (PAYS, "unsure", "{way} at {where}: the intervals do not tell whether it pays by its verify steps."),
    (MORE, "short", f"{{way}} pays by its verify steps, but under {MORE:g}x, at {{where}}{{better}}."),
    (MORE, "beyond", f"{{way}} pays by its verify steps at {{where}}, and no acceptance could make it {MORE:g}x."),
    (MORE, "unsure", f"{{way}} at {{where}}: the intervals do not tell whether it reaches {MORE:g}x."),
    (MORE, "reached", f"{{way}} reaches {MORE:g}x by its verify steps at {{where}}."),
    (PAYS, "untold", "{way} at {where}: step times do not explain what was measured, so what is missing is not told."),
)


def _standings(way: str, own: Sequence[DraftNeed], keys: Sequence[CellKey]) -> Iterator[str]:
    better = "" if own[0].spec.method in LOOKUP_METHODS else ": a better draft could"
    for gain, standing, text in SAID:
        # What does not even pay is not said again to miss 1.5x.
        pays = [one for one in own if gain == PAYS or one.standing(PAYS) == "reached"]
        where = [one.key for one in pays if one.standing(gain) == standing]
        if where:
            yield text.format(way=way, where=cells_text(where, keys), better=better)


def _least(way: str, own: Sequence[DraftNeed]) -> Iterator[str]:
    """Where another N than the best asks less. Step times do not depend on the temperature: a load is named once."""
    for at, gain in enumerate(GAINS):
        loads: dict[Load, tuple[int, float]] = {}
        for one in own:
            found = one.least[at]
            if found and found[0] != one.spec.n and one.standing(gain) == "short":
                loads.setdefault(one.key.load, found)
        asked = {load: found for load, found in loads.items() if gain > PAYS or _unreachable(own, load, at)}
        if asked:
            parts = [f"N = {n} at {loads_text([load])} (alpha {alpha:.3f})" for load, (n, alpha) in asked.items()]
            what = "to pay" if gain == PAYS else f"for {gain:g}x"
            yield f"{way} asks least of its draft {what} with {listed(parts)}."


def _unreachable(own: Sequence[DraftNeed], load: Load, at: int) -> bool:
    return any(not one.needs[at].reachable for one in own if one.key.load == load)


def _short(one: DraftNeed) -> str:
    parts = []
    for at, (need, what) in enumerate(zip(one.needs, ("pays", f"{MORE:g}x"), strict=True)):
        if not need.reachable:
            parts.append(f"{what}: {_never(one)}{_elsewhere(one.least[at])}")
        else:
            alpha = f" (alpha {need.alpha[0]:.2f})" if one.alpha_defined else ""
            parts.append(f"{what} above tau {need.tau.value:.2f}{alpha}")
    where = f"{one.key.load.text}, temperature {one.key.temperature:g},"
    return f"at {where} {one.spec.label} {', '.join(parts)}, and its own tau is {_tau(one)}"

"""How a figure is written for people: milliseconds, its interval, its n; what was not measured is said in words."""

from __future__ import annotations

from collections.abc import Iterable

from tuner.decide.break_even import Alphas
from tuner.decide.rank import ratio_text
from tuner.measure.records import CellKey, Load
from tuner.measure.statistics import Estimate

NOT_MEASURED = "not measured"
NOT_RANKED = "not ranked: lossy"


def ms(estimate: Estimate | None, n: int | None = None) -> str:
    """Seconds in, milliseconds out."""
    return figure(estimate.scaled(1000) if estimate else None, n)


def figure(estimate: Estimate | None, n: int | None = None, decimals: int | None = None) -> str:
    """`52.1 [50.3, 54.0], n = 24`. `n`: the n its table row already shows; it is repeated only where it differs."""
    if estimate is None:
        return NOT_MEASURED
    places = _decimals(estimate.value) if decimals is None else decimals
    text = f"{estimate.value:.{places}f} [{estimate.low:.{places}f}, {estimate.high:.{places}f}]"
    return text if estimate.n == n else f"{text}, n = {estimate.n}"


def ratio(estimate: Estimate | None) -> str:
    """`1.31x [1.22, 1.40], n = 24`."""
    return ratio_text(estimate) if estimate else NOT_MEASURED


def alphas(values: Alphas) -> str:
    """`0.366 [0.350, none]`: an alpha with the ends of its interval; none where no alpha reaches that end."""
    value, low, high = ("none" if a is None else f"{a:.3f}" for a in values)
    return f"{value} [{low}, {high}]"


def share(estimate: Estimate | None, n: int | None = None) -> str:
    """A share of one, in percent."""
    if estimate is None:
        return NOT_MEASURED
    text = f"{estimate.value:.1%} [{estimate.low:.1%}, {estimate.high:.1%}]"
    return text if estimate.n == n else f"{text}, n = {estimate.n}"


def count(value: int | None) -> str:
    return NOT_MEASURED if value is None else f"{value:,}"


def moved(estimate: Estimate | None) -> str:
    """A ratio near 1 as a change: `-1.4% [-1.8%, -0.8%], n = 24`."""
    if estimate is None:
        return NOT_MEASURED
    return f"{change(estimate.value - 1)} [{change(estimate.low - 1)}, {change(estimate.high - 1)}], n = {estimate.n}"


def change(value: float) -> str:
    """A share with its sign, `+3.1%`."""
    return f"{value:+.1%}"


def listed(items: Iterable[str], last: str = "and") -> str:
    """`a, b and c`."""
    *head, tail = list(items) or [""]
    return f"{', '.join(head)} {last} {tail}" if head else tail


def cell_text(key: CellKey) -> str:
    return f"{key.load.text}, temperature {key.temperature:g}"


def cells_text(keys: Iterable[CellKey], among: Iterable[CellKey]) -> str:
    """Cells in few words. `among`: all cells there are; temperatures are named only where they make a difference."""
    all_temperatures = tuple(dict.fromkeys(key.temperature for key in among))
    loads_at: dict[float, tuple[Load, ...]] = {}
    for key in keys:
        loads_at[key.temperature] = (*loads_at.get(key.temperature, ()), key.load)
    temperatures_at: dict[tuple[Load, ...], tuple[float, ...]] = {}
    for temperature, loads in loads_at.items():
        temperatures_at[loads] = (*temperatures_at.get(loads, ()), temperature)
    parts = []
    for loads, temperatures in temperatures_at.items():
        everywhere = temperatures == all_temperatures and len(all_temperatures) > 1
        named = "" if everywhere else f" (temperature {listed(f'{t:g}' for t in temperatures)})"
        parts.append(loads_text(loads) + named)
    return listed(parts)


def loads_text(loads: Iterable[Load]) -> str:
    """`concurrency 1, 4 and 8`."""
    chosen = list(loads)
    closed = [str(load.concurrency) for load in chosen if load.concurrency]
    opened = [f"{load.rate:g}" for load in chosen if not load.concurrency]
    parts = [f"concurrency {listed(closed)}"] if closed else []
    return listed([*parts, *([f"{listed(opened)} requests/s"] if opened else [])])


def _decimals(value: float) -> int:
    size = abs(value)
    return 3 if size < 1 else 2 if size < 10 else 1 if size < 1000 else 0

"""How the commands of `tuner theory` read lists of numbers and hand a result to text, CSV, JSON and PNG."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from tuner.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from tuner.report.theory_tables import Answer, Form

# Given `tuner.report.theory_plots`, which is imported only when something is drawn.
Draw = Callable[[ModuleType], "Figure"]


@dataclass(frozen=True, slots=True)
class Output:
    form: Form
    plot: Path | None

    def show(self, answer: Answer, draw: Draw | None = None) -> None:
        from tuner.report.theory_tables import rendered

        print(rendered(answer, self.form))
        if self.plot is not None and draw is not None:
            from tuner.report import theory_plots

            theory_plots.save(draw(theory_plots), self.plot)


def output(as_json: bool, as_csv: bool, plot: Path | None) -> Output:
    """Refuses what could not be shown before anything is computed."""
    if as_json and as_csv:
        raise UserError("--json and --csv both write to standard output; give one of them.")
    if plot is not None:
        from tuner.report.theory_plots import check_target

        check_target(plot)
    return Output("json" if as_json else "csv" if as_csv else "text", plot)


def integers(text: str, option: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"{option} {text!r} is no list of whole numbers; write it like 2,2,2.") from None


def numbers(text: str, option: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"{option} {text!r} is no list of numbers; write it like 0.8,0.7.") from None

"""`tuner sweep`: a night of studies, unattended, and what changed since the baseline."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tuner.cli.finite import finite

if TYPE_CHECKING:
    from tuner.run.sweep_study import Executor

EXAMPLES = """
Examples:

  tuner sweep sweeps/nightly-cpu.yaml

  tuner sweep sweeps/nightly-cpu.yaml --resume          go on with the night that was killed, or begin one

  tuner sweep sweeps/llama-70b-nightly.yaml --executor ray --json

Exit codes: 0 no gate and no launch failed; 1 a gate failed, or a setting that the baseline measured; 2 the file or
the setup is wrong; 3 an engine or a setting failed, and nothing tells whether it is worse than before; 130
interrupted. SIGTERM drops the cell in flight, ends the engine and leaves a night that --resume goes on with.
"""


class Where(StrEnum):
    local = "local"
    ray = "ray"


def sweep(
    file: Annotated[Path, typer.Argument(help="A sweep.yaml; sweeps/ has some to start from.")],
    resume: Annotated[bool, typer.Option(help="Go on with this sweep's unfinished night, if there is one.")] = False,
    reports: Annotated[Path, typer.Option(help="Where nights and their index are kept.")] = Path("reports"),
    minutes: Annotated[
        float | None, typer.Option(callback=finite, help="Instead of the sweep's budget.minutes.")
    ] = None,
    executor: Annotated[Where, typer.Option(help="ray: trials are tasks that claim GPUs (extra [ray]).")] = Where.local,
    address: Annotated[str | None, typer.Option(help="With ray: a cluster's address. Default: one of its own.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the night's outcome as JSON.")] = False,
) -> None:
    """Run a sweep: every study in turn, within its minutes; then compare with the baseline and hold the gates."""
    from tuner.cli.sweep_progress import night_progress
    from tuner.report.night_page import write_night_report
    from tuner.report.night_rows import outcome_json
    from tuner.report.night_text import outcome_text
    from tuner.run.signals import unwinding_signals
    from tuner.run.sweep_night import sweep_night

    with unwinding_signals(), night_progress() as notify:
        outcome = sweep_night(
            file, reports, notify, resume=resume, minutes=minutes, executor=_executor(executor, address),
            report=write_night_report,
        )  # fmt: skip
    typer.echo(outcome_json(outcome) if as_json else outcome_text(outcome))
    raise typer.Exit(outcome.exit_code)


def _executor(where: Where, address: str | None) -> Executor:
    if where is Where.local:
        from tuner.run.sweep_study import Local

        return Local()
    from tuner.run.sweep_ray import connect

    return connect(address)

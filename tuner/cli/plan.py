"""`tuner plan`: what would be launched, why and how long. Launches nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tuner.cli.finite import finite

EXAMPLES = """
Examples:

  tuner plan workload.yaml

  tuner plan workload.yaml --launches 5 --json          for a scheduler of your own
"""


def plan(
    workload: Annotated[Path, typer.Argument(help="A workload.yaml; `tuner init` writes one to start from.")],
    reports: Annotated[Path, typer.Option(help="Where studies are kept: a plan goes on from the newest one.")] = Path(
        "reports"
    ),
    minutes: Annotated[
        float | None, typer.Option(callback=finite, help="Instead of the workload's budget.minutes.")
    ] = None,
    launches: Annotated[int | None, typer.Option(help="Instead of the workload's budget.launches.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what would be launched for a workload, in what order and why. The engine need not be installed."""
    from tuner.report.plan_text import plan_json, plan_text
    from tuner.run.planning import plan_study

    planned = plan_study(workload, reports, minutes, launches)
    typer.echo(plan_json(planned) if as_json else plan_text(planned))

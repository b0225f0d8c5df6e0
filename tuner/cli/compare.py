"""`tuner compare`: two nights on the same prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

EXAMPLES = """
Examples:

  tuner compare 20261129-020000-nightly-cpu 20261130-020000-nightly-cpu

  tuner compare released nightly-cpu --gate "tpot_p50 regress > 3 %" --gate "tau drop > 5 %"

A and B are ids, beginnings of ids, tags, folders, or a sweep's name for its newest night; B is looked at against A.
Exit codes: 0 compared, and no gate failed; 1 a gate failed; 2 your input; 3 no figure was measured in both runs.
"""


def compare(
    before: Annotated[str, typer.Argument(metavar="A", help="The run to compare with.")],
    after: Annotated[str, typer.Argument(metavar="B", help="The run to look at.")],
    gate: Annotated[list[str] | None, typer.Option(help='What must not hold, e.g. "tau drop > 5 %".')] = None,
    reports: Annotated[Path, typer.Option(help="Where nights and studies are kept.")] = Path("reports"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what regressed, what improved and where there is no evidence, with intervals, and what may be behind it."""
    from tuner.report.night_rows import compared_json
    from tuner.report.night_text import compared_text
    from tuner.run.history import compare_asked

    compared = compare_asked(reports, before, after, gate or [])
    typer.echo(compared_json(compared) if as_json else compared_text(compared))
    raise typer.Exit(1 if compared.red else 3 if compared.nothing else 0)

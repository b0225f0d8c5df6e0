"""`tuner report`: the report of a study or of a night again, from stored records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    study: Annotated[
        Path, typer.Argument(help="the folder of a study or of a night, e.g. reports/20261130-021500-my-chat")
    ],
    outputs: Annotated[Path, typer.Option(help="where the deployable files are written")] = Path("outputs"),
    as_json: Annotated[
        bool, typer.Option("--json", help="print the recommendation, or the comparison of a night, as JSON")
    ] = False,
) -> None:
    """Write the report again, from stored records; no engine is needed. Of a study with its deployable files, of a
    night of `tuner sweep` as report.md and as report.html, one page that needs no network.

    \b
    Examples:
      tuner report reports/20261130-021500-my-chat
      tuner report reports/20261130-021500-my-chat --outputs /tmp/deploy --json
      tuner report reports/20261130-020000-nightly-cpu
    """
    from tuner.report.build import report_study
    from tuner.report.night_page import rewrite
    from tuner.run.store import StudyStore
    from tuner.run.sweep_store import is_night

    if is_night(study):
        typer.echo(rewrite(study, as_json=as_json))
        return
    written = report_study(StudyStore.read(study), outputs)
    typer.echo(written.to_json() if as_json else written.to_text())

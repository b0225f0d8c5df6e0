"""`tuner report`: a study's report again, from its stored records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    study: Annotated[Path, typer.Argument(help="a study's folder, e.g. reports/20261130-021500-my-chat")],
    outputs: Annotated[Path, typer.Option(help="where the deployable files are written")] = Path("outputs"),
    as_json: Annotated[bool, typer.Option("--json", help="print the recommendation as JSON")] = False,
) -> None:
    """Write a study's report and deployable files again, from its records; no engine is needed.

    \b
    Examples:
      tuner report reports/20261130-021500-my-chat
      tuner report reports/20261130-021500-my-chat --outputs /tmp/deploy --json
    """
    from tuner.report.build import report_study
    from tuner.run.store import StudyStore

    written = report_study(StudyStore.read(study), outputs)
    typer.echo(written.to_json() if as_json else written.to_text())

"""`tuner history`: every night and study there is, from the index over their journals."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

EXAMPLES = """
Examples:

  tuner history

  tuner history --name nightly-cpu --limit 14 --json

  tuner history --tag released 20261130-020000-nightly-cpu

  tuner history --rebuild          make the index again from the journals

The index is history.sqlite beside the studies, or the PostgreSQL database whose URL is in TUNER_HISTORY_URL, which
folders of reports may share: each lists its own.
"""


def history(
    reports: Annotated[Path, typer.Option(help="Where nights and studies are kept.")] = Path("reports"),
    name: Annotated[str | None, typer.Option(help="Only runs of this sweep or workload.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="The newest so many.")] = 30,
    tag: Annotated[
        tuple[str, str] | None, typer.Option(metavar="TAG RUN", help="Give a night a name to compare with.")
    ] = None,
    rebuild: Annotated[bool, typer.Option(help="Make the index again from the journals.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List nights and studies, newest first: status, gates, engines, launches, failures."""
    from tuner.report.history_text import history_json, history_text
    from tuner.run.history import runs_of, tag_run

    if tag is not None:
        tag_run(reports, *tag)
    runs, unreadable = runs_of(reports, name, limit, again=rebuild)
    for sentence in unreadable:
        typer.echo(f"tuner: left out: {sentence}", err=True)
    typer.echo(history_json(runs) if as_json else history_text(runs))

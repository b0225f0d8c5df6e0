"""`tuner schema`: the JSON Schemas of the files tuner reads and writes."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

EXAMPLES = """
Examples:

  tuner schema                          what workload.yaml may hold

  tuner schema sweep                    what a sweep file may hold

  tuner schema recommendation           what recommendation.json holds

  tuner schema alpha                    what the acceptance profiles of a study hold

  tuner schema --output workload.schema.json

For completion in an editor, begin workload.yaml with the line

  # yaml-language-server: $schema=workload.schema.json
"""


class Kind(StrEnum):
    workload = "workload"
    sweep = "sweep"
    recommendation = "recommendation"
    alpha = "alpha"


def schema(
    kind: Annotated[Kind, typer.Argument(help="Which file's.")] = Kind.workload,
    output: Annotated[Path | None, typer.Option(metavar="FILE", help="Write it there instead of printing it.")] = None,
) -> None:
    """Print the JSON Schema of workload.yaml, of a sweep file, of recommendation.json, or of a study's *.alpha.json."""
    text = _text(kind)
    if output is None:
        typer.echo(text, nl=False)
        return
    from tuner.cli.chosen_file import write_chosen

    write_chosen(output, text, replace=True)
    typer.echo(f"wrote {output}")


def _text(kind: Kind) -> str:
    from importlib.resources import files

    from tuner.spec.json_schema import schema_text, workload_schema_text

    if kind is Kind.workload:
        return workload_schema_text()
    if kind is Kind.sweep:
        from tuner.spec.sweep import Sweep

        return schema_text(Sweep)
    return (files("tuner.report") / f"{kind}.schema.json").read_text(encoding="utf-8")

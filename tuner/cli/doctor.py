"""`tuner doctor`: what works on this machine, what does not, and what to do about it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

EXAMPLES = """
Examples:

  tuner doctor                       one line each: ok, warn or fail

  tuner doctor --json                the same for machines, with the host's facts
"""


def doctor(
    reports: Annotated[Path, typer.Option(help="Where studies would be written.")] = Path("reports"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Look at the machine, its GPUs, engines, models, ports, room and clocks. Exit code 1: something will not work."""
    from tuner.report.doctor_text import doctor_json, doctor_text
    from tuner.run.doctor import diagnose

    diagnosis = diagnose(reports)
    typer.echo(doctor_json(diagnosis) if as_json else doctor_text(diagnosis))
    raise typer.Exit(0 if diagnosis.ok else 1)

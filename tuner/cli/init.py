"""`tuner init`: a workload of one's own, from a shipped profile."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

EXAMPLES = """
Examples:

  tuner init                            workload.yaml from the profile chat

  tuner init bot.yaml --from code --model ./my-model

  tuner init --from both-engines --engine vllm --engine sglang

  tuner init --list                     the profiles there are
"""


def init(
    file: Annotated[Path, typer.Argument(help="The file to write.")] = Path("workload.yaml"),
    profile: Annotated[str, typer.Option("--from", metavar="PROFILE", help="The profile to start from.")] = "chat",
    model: Annotated[str | None, typer.Option(help="The target: a folder, a registered name or a hub id.")] = None,
    engine: Annotated[
        list[str] | None, typer.Option(help="A name from `tuner engine list`; repeat to compare.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists.")] = False,
    show: Annotated[bool, typer.Option("--list", help="List the profiles and write nothing.")] = False,
) -> None:
    """Write a commented workload to start from."""
    from tuner.spec.profiles import descriptions, starter

    if show:
        for name, description in descriptions().items():
            typer.echo(f"{name:26} {description}")
        return
    from tuner.cli.chosen_file import write_chosen

    made = starter(profile, file, model, engine or ())
    write_chosen(file, made.text, replace=force)
    typer.echo(f"wrote {file} from the profile {profile}")
    for draft in made.unfit:
        typer.echo(f"left out: {draft}, which fits the profile's model; name one for yours in {file}")
    typer.echo(f"next: look it through, then `tuner recommend {file}`")

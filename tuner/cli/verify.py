"""`tuner verify`: is the speculating server's output still the target's?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tuner.cli.finite import finite

EXAMPLES = """
Examples:

  tuner verify workload.yaml

  tuner verify workload.yaml --setting 'eagle3 N=3' --samples 20000 --json

  tuner verify --off-url http://localhost:8000 --spec-url http://localhost:8001 --temperature 1

Exit code: 0 lossless as far as tested, 1 it is not, 2 your input, 3 an engine failed.
"""


def verify(
    workload: Annotated[Path | None, typer.Argument(help="Launches what this workload names.")] = None,
    off_url: Annotated[str | None, typer.Option(help="A server without speculation that runs already.")] = None,
    spec_url: Annotated[str | None, typer.Option(help="And one with it.")] = None,
    setting: Annotated[
        list[str] | None, typer.Option(help="Such as 'eagle3 N=3'. Default: each draft at its most tokens.")
    ] = None,
    engine: Annotated[str | None, typer.Option(help="Which of the workload's engines. Default: its first.")] = None,
    temperature: Annotated[
        list[float] | None,
        typer.Option(min=0, max=2, callback=finite, help="Above 0. Default: the workload's, or 1; 0 alone: greedy."),
    ] = None,
    prompts: Annotated[int, typer.Option(min=1, help="Prompts answered greedily.")] = 32,
    tokens: Annotated[int, typer.Option(min=2, help="Tokens of each such answer.")] = 96,
    samples: Annotated[int, typer.Option(min=64, help="Samples of each server at each temperature.")] = 8192,
    first_k: Annotated[int, typer.Option(min=2, max=32, help="Tokens of each sample.")] = 5,
    concurrency: Annotated[int, typer.Option(min=1, help="With two addresses: answers in flight.")] = 16,
    tie: Annotated[
        float,
        typer.Option(min=0, callback=finite, help="With two addresses: the log-probability gap, nats, that is a tie."),
    ] = 0.5,
    seed: Annotated[int, typer.Option(help="With two addresses: of the seeded samples.")] = 0,
    model: Annotated[str | None, typer.Option(help="With two addresses: the served name. Default: the first.")] = None,
    reports: Annotated[Path, typer.Option(help="Where results and engine logs are kept.")] = Path("reports"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare the output of a server that speculates with that of one that does not.

    Greedily, token by token, and judged against what rounding does to off itself; at temperatures above 0 by two-sample
    tests on the first tokens of many samples; answers bound to a grammar by whether they parse.
    """
    import asyncio

    from tuner.cli.progress import progress
    from tuner.errors import UserError
    from tuner.report.lossless_text import verify_json, verify_text
    from tuner.run.device_lock import holding_engines
    from tuner.run.preflight import read_question
    from tuner.run.signals import unwinding_signals
    from tuner.run.verify import chosen_engine, chosen_settings, verify_addresses, verify_workload
    from tuner.run.verify_task import Effort, plain_task

    effort = Effort(prompts, tokens, samples, first_k)
    if off_url is not None and spec_url is not None and workload is None:
        task = plain_task(effort, temperature or [1.0], concurrency, seed, tie)
        found = asyncio.run(verify_addresses(off_url, spec_url, task, model))
    elif workload is not None and off_url is None and spec_url is None:
        question = read_question(workload)
        environment = chosen_engine(question, engine)
        specs = chosen_settings(question.arms, setting or ())
        held = holding_engines([(environment, question.options(environment))], f"tuner verify {question.workload.name}")
        with unwinding_signals(), held, progress() as notify:
            found = asyncio.run(verify_workload(question, environment, specs, effort, reports, notify, temperature))
    else:
        raise UserError("give a workload, or both --off-url and --spec-url: see tuner verify --help")
    typer.echo(verify_json(found) if as_json else verify_text(found))
    raise typer.Exit(0 if found.ok else 1)

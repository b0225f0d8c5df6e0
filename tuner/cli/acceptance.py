"""`tuner acceptance`: what speculation does on any server, from two metric dumps or two scrapes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tuner.cli.finite import finite


def acceptance(
    before: Annotated[Path | None, typer.Argument(help="GET /metrics, saved at the start")] = None,
    after: Annotated[Path | None, typer.Argument(help="GET /metrics, saved at the end")] = None,
    url: Annotated[str | None, typer.Option(help="a server to scrape twice instead")] = None,
    seconds: Annotated[float, typer.Option(min=0.1, callback=finite, help="between the two scrapes")] = 60.0,
    n: Annotated[int | None, typer.Option(min=1, help="tokens drafted per step, if the dumps do not tell")] = None,
    api_key_env: Annotated[str, typer.Option(help="environment variable with the server's key")] = "TUNER_API_KEY",
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Read acceptance from a server's counters: alpha, a_k, alpha_k, tau. Sends no request of its own.

    \b
    Examples:
      tuner acceptance before.prom after.prom
      tuner acceptance --url http://localhost:8000 --seconds 300
      tuner acceptance before.prom after.prom --n 5 --json
    """
    import asyncio
    import os

    from tuner.errors import UserError
    from tuner.measure.counters import counter_delta
    from tuner.report.acceptance_text import acceptance_json, acceptance_text
    from tuner.run.files import read_text
    from tuner.run.watch import scrape_twice

    if url is not None and before is None:
        texts = asyncio.run(scrape_twice(url, seconds, os.environ.get(api_key_env)))
    elif before is not None and after is not None and url is None:
        texts = read_text(before), read_text(after)
    else:
        raise UserError("give either two files, BEFORE and AFTER, or --url: see tuner acceptance --help")
    delta = counter_delta(*texts, n)
    typer.echo(acceptance_json(delta) if as_json else acceptance_text(delta))

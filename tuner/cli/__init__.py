"""The `tuner` command: parses, calls one function of the core, hands the result on. No maths and no I/O here."""

from __future__ import annotations

import sys

import typer

from tuner.cli import (
    acceptance,
    check,
    compare,
    doctor,
    draft,
    engine,
    history,
    init,
    model,
    plan,
    recommend,
    report,
    schema,
    sweep,
    theory,
    verify,
)
from tuner.errors import TunerError

app = typer.Typer(
    name="tuner",
    help="Should you turn on speculative decoding for your workload, with what, and how sure are we?",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("recommend")(recommend.recommend)
app.command("plan", epilog=plan.EXAMPLES)(plan.plan)
app.command("report")(report.report)
app.command("sweep", epilog=sweep.EXAMPLES)(sweep.sweep)
app.command("history", epilog=history.EXAMPLES)(history.history)
app.command("compare", epilog=compare.EXAMPLES)(compare.compare)
app.command("acceptance")(acceptance.acceptance)
app.command("check", epilog=check.EXAMPLES)(check.check)
app.command("verify", epilog=verify.EXAMPLES)(verify.verify)
app.command("doctor", epilog=doctor.EXAMPLES)(doctor.doctor)
app.add_typer(engine.app, name="engine")
app.add_typer(model.app, name="model")
app.add_typer(draft.app, name="draft")
app.add_typer(theory.app, name="theory")
app.command("init", epilog=init.EXAMPLES)(init.init)
app.command("schema", epilog=schema.EXAMPLES)(schema.schema)


def main() -> None:
    """Run the command line; a TunerError becomes one sentence on stderr and its exit code."""
    try:
        app()
    except TunerError as error:
        print(f"tuner: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    except KeyboardInterrupt:
        print("tuner: interrupted", file=sys.stderr)
        raise SystemExit(130) from None


@app.callback()
def root() -> None:
    """Measure, decide and explain speculative decoding on your own engine."""

"""`tuner recommend`: the main job, from a workload to a recommendation, a report and files to deploy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tuner.cli.finite import finite


def recommend(
    workload: Annotated[
        Path | None, typer.Argument(help="a workload.yaml; `tuner init` writes one to start from")
    ] = None,
    told: Annotated[
        Path | None,
        typer.Option("--from", metavar="FILE", help="measure nothing: advise from results others measured"),
    ] = None,
    served: Annotated[
        Path | None, typer.Option("--workload", metavar="FILE", help="with --from: what will be served")
    ] = None,
    resume: Annotated[bool, typer.Option(help="go on with the newest unfinished study of this workload")] = False,
    reports: Annotated[Path, typer.Option(help="where studies and reports are kept")] = Path("reports"),
    outputs: Annotated[Path, typer.Option(help="where the deployable files are written")] = Path("outputs"),
    minutes: Annotated[
        float | None, typer.Option(callback=finite, help="instead of the workload's budget.minutes")
    ] = None,
    launches: Annotated[int | None, typer.Option(help="instead of the workload's budget.launches")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the recommendation as JSON")] = False,
) -> None:
    """Launch your engine with and without speculation, measure both, and say what to do.

    Writes reports/<run>/report.md with its plots and records, outputs/skill-eagle3-tuner.md,
    outputs/recommendation.json and outputs/launch.sh. Interrupt it whenever you like: --resume goes on.

    \b
    Examples:
      tuner recommend profiles/smollm2-chat-cpu.yaml
      tuner recommend workload.yaml --minutes 30 --launches 5
      tuner recommend workload.yaml --resume --json
      tuner recommend --from results.csv --workload workload.yaml

    --from reads CSV (method,n,steps,topk,nodes,concurrency,rate,temperature,task,share,tpot_ms,tpot_se_ms,ttft_p50_ms,
    ttft_p95_ms,e2e_p50_ms,throughput_tok_s,tau,a_1,a_2,... any that suffice), the JSON of `vllm bench serve` and of
    AIPerf, or a folder of them. JSON names its setting with keys (--metadata method=eagle3 n=3), or its file or folder
    does (eagle3-n3/profile_export_aiperf.json). An N that was not measured is predicted where the rule allows, and
    called so; loads, temperatures and GPUs other than those to be served decide nothing.
    """
    if told is not None:
        typer.echo(_from_results(told, served or workload, as_json))
        return
    if workload is None:
        from tuner.errors import UserError

        raise UserError("give a workload.yaml (`tuner init` writes one), or results with --from")
    import asyncio

    from tuner.cli.progress import progress
    from tuner.errors import Interrupted
    from tuner.report.build import report_study
    from tuner.run.device_lock import holding_engines
    from tuner.run.preflight import read_question
    from tuner.run.question import with_budget
    from tuner.run.signals import unwinding_signals
    from tuner.run.start import open_study
    from tuner.run.study import run_study

    question = with_budget(read_question(workload), minutes, launches)
    held = holding_engines(
        [(one, question.options(one)) for one in question.environments], f"tuner recommend {question.workload.name}"
    )
    with unwinding_signals(), held, open_study(question, reports, resume=resume) as store:
        try:
            with progress() as notify:
                asyncio.run(run_study(question, store, notify))
        except KeyboardInterrupt:
            raise Interrupted(f"interrupted; {store.folder} keeps every finished cell: go on with --resume") from None
        report = report_study(store, outputs)
    typer.echo(report.to_json() if as_json else report.to_text())


def _from_results(told: Path, served: Path | None, as_json: bool) -> str:
    from tuner.report.told_text import told_json, told_text
    from tuner.run.imported import advise_from

    advice = advise_from(told, served)
    return told_json(advice) if as_json else told_text(advice)

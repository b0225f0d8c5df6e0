"""`tuner check`: does this draft fit this target on this engine? Reads configs and headers; loads no weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

EXAMPLES = """
Examples:

  tuner check --target ~/models/llama --draft ~/models/head --method eagle3 --engine vllm --n 3

  tuner check --target smollm2-135m --draft none --method ngram --engine sglang --json

  tuner check --target T --draft D --method eagle3 --engine sglang --steps 5 --topk 4 --nodes 8 -- --page-size 64

  tuner check --workload workload.yaml                every setting of a workload on its engines
"""


def check(
    target: Annotated[
        str | None, typer.Option(help="The model to serve: a folder, a registered name, a hub id.")
    ] = None,
    draft: Annotated[str | None, typer.Option(help="The draft's folder or hub id, or none.")] = None,
    method: Annotated[str | None, typer.Option(help="How it drafts. Default: what the draft was made for.")] = None,
    engine: Annotated[str, typer.Option(help="vllm, sglang, or a name from `tuner engine list`.")] = "vllm",
    engine_version: Annotated[
        str | None, typer.Option(help="Default: the registered one, or the newest known.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu, gpu, or its kind: cuda, hip, xpu. Default: the registered one's, or gpu.")
    ] = None,
    n: Annotated[int | None, typer.Option(min=0, help="Tokens drafted per verify step, on a chain.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Depth of a tree (SGLang's num-steps).")] = None,
    topk: Annotated[int | None, typer.Option(min=1, help="Branches of a tree (SGLang's eagle-topk).")] = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="Verified nodes of a tree, root included.")] = None,
    tp: Annotated[int | None, typer.Option(min=1, help="GPUs that share the target.")] = None,
    workload: Annotated[
        Path | None, typer.Option(help="Sampling, lengths, load and engine options from this file.")
    ] = None,
    option: Annotated[list[str] | None, typer.Option(help="key=value of the engine's speculative config.")] = None,
    max_model_len: Annotated[int | None, typer.Option(min=1, help="Tokens of prompt and answer together.")] = None,
    prompt_tokens: Annotated[int | None, typer.Option(min=1, help="95th percentile of your prompts.")] = None,
    output_tokens: Annotated[int | None, typer.Option(min=1, help="Most tokens of an answer.")] = None,
    concurrency: Annotated[int | None, typer.Option(min=1, help="Requests at once.")] = None,
    kv_tokens: Annotated[int | None, typer.Option(min=1, help="The engine's KV cache size without a draft.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    engine_args: Annotated[list[str] | None, typer.Argument(help="Behind --: the engine's own arguments.")] = None,
) -> None:
    """Check a draft against its target, engine and traffic before anything is launched. Exit code 1: errors."""
    from tuner.engines.environments import DEVICES
    from tuner.errors import UserError
    from tuner.report.check_text import check_json, check_text, workload_json, workload_text
    from tuner.run.checking import Typed, check_typed

    if device not in (None, *DEVICES):
        raise UserError(f"--device is one of {', '.join(DEVICES)}")
    if target is None and workload is not None and method is None and draft is None:
        from tuner.run.preflight import look_at

        looked = look_at(workload)
        typer.echo(workload_json(looked) if as_json else workload_text(looked))
        raise typer.Exit(1 if any(one.errors for one in looked) else 0)
    if target is None:
        raise UserError("give --target and --draft, or --workload alone: see tuner check --help")
    checked = check_typed(
        Typed(
            target, method, engine, draft, engine_version, device, n, steps, topk, nodes, tp, workload,
            tuple(option or ()), tuple(engine_args or ()), max_model_len, prompt_tokens, output_tokens, concurrency,
            kv_tokens,
        )
    )  # fmt: skip
    typer.echo(check_json(checked) if as_json else check_text(checked))
    raise typer.Exit(0 if checked.ok else 1)

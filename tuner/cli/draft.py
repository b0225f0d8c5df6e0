"""`tuner draft`: drafts of one's own for a target."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from tuner.cli.finite import finite

app = typer.Typer(help="Drafts of your own for a target.", no_args_is_help=True, rich_markup_mode=None)

EXAMPLES = """\b
Examples:
  tuner draft train --target smollm2-135m --method eagle3 --out ./head --minutes 60
  tuner draft train --target smollm2-135m --method medusa --out ./medusa --minutes 10 --prompts my-traffic.jsonl
  tuner draft train --target smollm2-135m --method eagle3 --out ./head --minutes 60 --resume

Exit code: 0 trained and checked, 2 your input, 3 the training failed, 130 interrupted: --resume goes on.
"""


def tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _numbers(text: str, option: str) -> tuple[float, ...]:
    from tuner.errors import UserError

    try:
        found = tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise UserError(f"{option} is a list of numbers with commas between them, not {text!r}") from None
    if any(not 0 <= number < float("inf") for number in found):
        raise UserError(f"{option} takes finite numbers from 0, not {text!r}")
    return found


@app.callback()
def draft() -> None:
    """Drafts of your own for a target."""


@app.command(epilog=EXAMPLES)
def train(
    target: Annotated[str, typer.Option(help="The model that is served: a folder or a registered name.")],
    method: Annotated[str, typer.Option(help="eagle3, eagle, medusa or draft_model.")],
    out: Annotated[Path, typer.Option(help="The draft's folder; it appears when the draft is finished.")],
    minutes: Annotated[
        float | None, typer.Option(min=0, callback=finite, help="Wall-clock time of training, data not counted.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Optimiser steps; with --minutes whichever is first.")
    ] = None,
    engine: Annotated[
        str | None, typer.Option(help="In whose environment. Default: a vLLM's, else the first that can.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Where the target's answers are kept. Default: one folder a target.")
    ] = None,
    prompts: Annotated[
        list[str] | None, typer.Option(help="A set, a file, or `written`: questions by template. Default: written.")
    ] = None,
    held_out: Annotated[
        list[str] | None, typer.Option(help="Sets that are never trained on. Default: chat, maths and code.")
    ] = None,
    written: Annotated[int, typer.Option(min=0, help="Questions by template.")] = 3000,
    own_questions: Annotated[int, typer.Option(min=0, help="Questions that the target asks itself.")] = 1000,
    temperatures: Annotated[
        str, typer.Option(help="Of the answers; more often listed, more often used.")
    ] = "0,0,0.7,1",
    answer_tokens: Annotated[int, typer.Option(min=8, help="Most tokens of an answer.")] = 128,
    prompt_tokens: Annotated[int, typer.Option(min=8, help="Longer prompts are left out.")] = 384,
    data_minutes: Annotated[
        float | None, typer.Option(min=0, callback=finite, help="Answering ends after so long. Default: at the last.")
    ] = None,
    ttt: Annotated[int, typer.Option(min=1, max=16, help="Unrolled steps of training-time test.")] = 4,
    draft_vocab: Annotated[int, typer.Option(min=0, help="Tokens that can be drafted; 0: all.")] = 8192,
    heads: Annotated[int, typer.Option(min=1, max=16, help="Of Medusa.")] = 4,
    layers: Annotated[int, typer.Option(min=1, help="Of a draft model.")] = 4,
    hidden: Annotated[int, typer.Option(min=0, help="Width of a draft model; 0: the target's.")] = 0,
    taps: Annotated[str, typer.Option(help="States an EAGLE-3 head reads, as 2,15,27. Default: the engines'.")] = "",
    feature_norm: Annotated[bool, typer.Option(help="EAGLE-3: a norm on each tapped state (fc_norm).")] = False,
    intermediate: Annotated[int, typer.Option(min=0, help="Width of an EAGLE head's MLP; 0: the target's.")] = 0,
    rate: Annotated[float | None, typer.Option(min=0, callback=finite, help="Peak learning rate.")] = None,
    rows: Annotated[int, typer.Option(min=16, help="Padded tokens of one process's batch.")] = 1024,
    loss_tokens: Annotated[
        int, typer.Option(min=0, help="About how many tokens a step's loss is over; 0: all.")
    ] = 2048,
    share: Annotated[
        float, typer.Option(min=0.01, max=1, help="Of the places that are unrolled further than one step.")
    ] = 0.5,
    decay: Annotated[
        float, typer.Option(min=0.01, max=1, help="Weight of an unrolled step's loss beside the one before it.")
    ] = 0.8,
    sharpness: Annotated[
        float, typer.Option(min=0.1, max=10, help="Exponent of the target's probabilities in the loss.")
    ] = 1.0,
    precision: Annotated[str, typer.Option(help="bf16, float32, or auto: bf16 where the CPU has it.")] = "auto",
    ranks: Annotated[int | None, typer.Option(min=1, help="Processes of one thread. Default: one a core.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the first weights and of the order.")] = 0,
    data_seed: Annotated[int, typer.Option(min=0, help="Of the prompts and of sampled answers.")] = 0,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where an interrupted run of these settings was.")
    ] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Overwrite the draft that OUT holds.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Train a draft for a target on its own answers, in an engine's environment, and check that it fits.

    The target answers prompts once; every draft of it learns from those answers. Prompts that are held out are told by
    hash and never trained on; what the draft would have accepted of their answers is in training.json beside it.
    """
    import os

    from tuner.report.training_text import training_json, training_text
    from tuner.run.training import train_draft
    from tuner.run.training_plan import DataPlan, TrainingPlan

    defaults = DataPlan()
    trained = train_draft(
        TrainingPlan(
            target, method, out,
            DataPlan(
                tuple(prompts or defaults.prompts), tuple(held_out or defaults.held_out), written, own_questions,
                _numbers(temperatures, "--temperatures"), answer_tokens, prompt_tokens, data_minutes, data_seed,
            ),
            folder=data, engine=engine, steps=steps, minutes=minutes, seed=seed,
            ranks=ranks or len(os.sched_getaffinity(0)), precision=precision, ttt=ttt, rows=rows, rate=rate,
            loss_tokens=loss_tokens,
            share=share, decay=decay, sharpness=sharpness, vocabulary=draft_vocab, feature_norm=feature_norm,
            taps=tuple(int(tap) for tap in _numbers(taps, "--taps")), intermediate=intermediate, heads=heads,
            layers=layers, hidden=hidden, resume=resume, replace=replace,
        ),
        tell,
    )  # fmt: skip
    typer.echo(training_json(trained) if as_json else training_text(trained))

"""`tuner theory`: the exact core of speculative decoding, to run and to check."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tuner.cli.theory_output import integers, numbers, output
from tuner.errors import GateFailed

if TYPE_CHECKING:
    from tuner.theory.siblings import Drafting

app = typer.Typer(
    help="The theory of speculative decoding, exact and checkable: small models, no engine, no GPU.",
    no_args_is_help=True,
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Csv = Annotated[bool, typer.Option("--csv", help="Print the table as CSV.")]
Plot = Annotated[Path | None, typer.Option("--plot", metavar="PATH", help="Draw a PNG to this path.")]
Alpha = Annotated[float, typer.Option(help="Share of drafted tokens the target keeps, 0 to 1.")]
Cost = Annotated[float, typer.Option(help="c: time to draft one token over one plain decoding step.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of every random draw.")]


@app.command()
def verify(
    steps: Annotated[int, typer.Option(help="Sequences to run; each begins with one speculative step.")] = 50_000,
    seed: Seed = 1,
    n: Annotated[int, typer.Option(help="Tokens drafted a step, 1 to 6.")] = 3,
    as_json: Json = False,
    as_csv: Csv = False,
    plot: Plot = None,
) -> None:
    """Test that speculation writes the target's own text, and that the test would notice if it did not.

    Exit code 1 when the lossless loop is rejected (it is for 5 % of all seeds) or a broken one is not.

    \b
    tuner theory verify
    tuner theory verify --steps 200000 --seed 7 --json
    """
    shown_as = output(as_json, as_csv, plot)
    from tuner.report.theory_answers import verify_answer
    from tuner.theory.verify import verify as run

    result = run(steps, seed, n)
    shown_as.show(verify_answer(result), lambda plots: plots.verify_figure(result))
    if not result.passed:
        raise GateFailed("the check did not pass; repeat with other seeds: about 5 % of them fail by chance.")


@app.command()
def step(
    n: Annotated[int, typer.Option(help="Tokens drafted a step.")] = 4,
    steps: Annotated[int, typer.Option(help="Steps to show.")] = 8,
    seed: Seed = 0,
    as_json: Json = False,
    as_csv: Csv = False,
) -> None:
    """Show the loop at work: drafted tokens, how many are kept, and the correction or bonus that closes a step.

    \b
    tuner theory step --n 4 --steps 8
    """
    shown_as = output(as_json, as_csv, None)
    from tuner.report.theory_answers import step_answer
    from tuner.theory.trace import trace

    shown_as.show(step_answer(trace(n, steps, seed)))


@app.command()
def speedup(
    alpha: Alpha,
    cost: Cost,
    n_max: Annotated[int, typer.Option(help="Length of the curve; the best N is searched without a limit.")] = 10,
    as_json: Json = False,
    as_csv: Csv = False,
    plot: Plot = None,
) -> None:
    """Tokens per call and time per token over N, the best N, and the break-even alpha of each N.

    \b
    tuner theory speedup --alpha 0.8 --cost 0.05
    tuner theory speedup --alpha 0.9 --cost 0.04 --n-max 20 --plot curve.png
    """
    shown_as = output(as_json, as_csv, plot)
    from tuner.report.theory_answers import speedup_answer
    from tuner.theory.speedup import best_n, break_even_alphas, curve

    points, best = curve(alpha, cost, n_max), best_n(alpha, cost)
    even = break_even_alphas([point.n for point in points], cost)
    shown_as.show(
        speedup_answer(alpha, cost, points, best, even),
        lambda plots: plots.speedup_figure(alpha, cost, points, best),
    )


@app.command()
def grid(
    alphas: Annotated[str, typer.Option(help="Values of alpha, with commas.")] = "0.5,0.6,0.7,0.8,0.9,0.95",
    n_max: Annotated[int, typer.Option(help="Largest N.")] = 10,
    as_json: Json = False,
    as_csv: Csv = False,
    plot: Plot = None,
) -> None:
    """Tokens per call over alpha and N.

    \b
    tuner theory grid --alphas 0.6,0.8,0.9 --n-max 8 --plot grid.png
    """
    shown_as = output(as_json, as_csv, plot)
    from tuner.report.theory_answers import grid_answer
    from tuner.theory.speedup import grid as run

    rates = numbers(alphas, "--alphas")
    drafted, tokens = run(rates, n_max)
    shown_as.show(grid_answer(rates, drafted, tokens), lambda plots: plots.grid_figure(rates, drafted, tokens))


@app.command()
def alpha(
    levels: Annotated[str, typer.Option(help="How far to move the draft away from the target.")] = "0,0.5,1,2,4,8",
    n: Annotated[int, typer.Option(help="Tokens drafted a step.")] = 4,
    steps: Annotated[int, typer.Option(help="Steps to run at each level.")] = 50_000,
    seed: Seed = 0,
    as_json: Json = False,
    as_csv: Csv = False,
    plot: Plot = None,
) -> None:
    """Perturb a draft away from the target, measure alpha by running the rule, compare with 1 - TV(p, q).

    \b
    tuner theory alpha
    tuner theory alpha --levels 0,1,3 --n 8 --csv
    """
    shown_as = output(as_json, as_csv, plot)
    from tuner.report.theory_answers import alpha_answer
    from tuner.theory.quality import alpha_by_quality

    points = alpha_by_quality(numbers(levels, "--levels"), steps, n, seed)
    shown_as.show(alpha_answer(points), lambda plots: plots.alpha_figure(points))


@app.command()
def load(
    cost: Cost,
    alphas: Annotated[str, typer.Option(help="alpha by position, with commas; the last holds on to --n-max.")],
    ridge: Annotated[float, typer.Option(help="Tokens in one pass at which computing outlasts reading weights.")],
    kv: Annotated[float, typer.Option(help="Reading one sequence's cache over reading the weights.")] = 0.0,
    batches: Annotated[str, typer.Option(help="Sequences running.")] = "1,8,32,64,128,256,512",
    n_max: Annotated[int, typer.Option(help="Largest N considered.")] = 32,
    as_json: Json = False,
    as_csv: Csv = False,
    plot: Plot = None,
) -> None:
    """The best N as load grows: verification is free until the machine computes as long as it reads.

    \b
    tuner theory load --alphas 0.8 --cost 0.05 --ridge 295
    tuner theory load --alphas 0.8,0.7,0.6,0.5 --cost 0.05 --ridge 295 --kv 0.01 --batches 1,16,256
    """
    shown_as = output(as_json, as_csv, plot)
    from tuner.report.theory_answers import load_answer
    from tuner.theory.load import StepTime, best_by_batch, held_on

    rates = held_on(numbers(alphas, "--alphas"), n_max)
    points = best_by_batch(integers(batches, "--batches"), rates, StepTime(cost, ridge, kv))
    shown_as.show(load_answer(points), lambda plots: plots.load_figure(points))


@app.command()
def tree(
    branching: Annotated[str, typer.Option(help="Children a node at each depth.")] = "2,2,2",
    alpha: Annotated[float, typer.Option(help="One-token acceptance of the toy draft in every context.")] = 0.8,
    vocab: Annotated[int, typer.Option(help="Vocabulary of the toy models.")] = 8,
    top_k: Annotated[bool, typer.Option("--top-k", help="Draft the most likely tokens, not samples.")] = False,
    steps: Annotated[int, typer.Option(help="Sequences for the check of losslessness.")] = 20_000,
    seed: Seed = 0,
    as_json: Json = False,
    as_csv: Csv = False,
    plot: Plot = None,
) -> None:
    """Tokens per call of a draft tree, exactly, against chains and dynamic trees; and is its rule lossless.

    \b
    tuner theory tree --branching 2,2,2
    tuner theory tree --branching 4,2,1 --top-k --json
    """
    shown_as = output(as_json, as_csv, plot)
    from tuner.report.theory_answers import tree_answer
    from tuner.theory.tree_study import study_tree

    drafting: Drafting = "top-k" if top_k else "sampled"
    study = study_tree(integers(branching, "--branching"), alpha, vocab, drafting, steps, seed)
    shown_as.show(tree_answer(study), lambda plots: plots.tree_figure(study))


@app.command()
def kv(
    n: Annotated[int, typer.Option(help="Tokens drafted on a chain.")] = 5,
    accepted: Annotated[str, typer.Option(help="Drafted tokens each sequence keeps, with commas.")] = "5,2",
    prefix: Annotated[int, typer.Option(help="Entries in the cache before the pass.")] = 10,
    block_size: Annotated[int, typer.Option(help="Entries a block.")] = 16,
    branching: Annotated[str | None, typer.Option(help="A tree instead of a chain; --n is then unused.")] = None,
    as_json: Json = False,
    as_csv: Csv = False,
    plot: Plot = None,
) -> None:
    """Roll back a paged KV cache after one verify pass, by scratch-and-commit and by truncation.

    The pass writes N + 1 entries a sequence: the pending token's and the drafted ones'.

    \b
    tuner theory kv --n 5 --accepted 5,2 --prefix 10
    tuner theory kv --branching 2,2 --accepted 2,0 --block-size 4
    """
    shown_as = output(as_json, as_csv, plot)
    from tuner.report.theory_answers import kv_answer
    from tuner.theory.rollback import demonstrate

    counts = integers(accepted, "--accepted")
    shape = None if branching is None else integers(branching, "--branching")
    both = demonstrate(n, counts, prefix, block_size, shape)
    shown_as.show(kv_answer(counts, both), lambda plots: plots.kv_figure(both))

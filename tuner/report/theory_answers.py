"""What each result of `tuner.theory` says: its JSON, its table, and the sentences below the table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from tuner.report.theory_tables import Answer, cell
from tuner.theory.chi2 import Chi2Test
from tuner.theory.load import LoadPoint
from tuner.theory.quality import QualityPoint
from tuner.theory.rollback import Demonstration, Settled
from tuner.theory.speedup import Optimum, Point, next_token_worth
from tuner.theory.trace import TracedStep
from tuner.theory.tree_study import TreeStudy
from tuner.theory.verify import Verification


def speedup_answer(
    alpha: float, cost: float, points: Sequence[Point], best: Optimum, break_even: Sequence[float | None]
) -> Answer:
    last = points[-1]
    worth, price = next_token_worth(alpha, cost, last.n)
    slope = "still gains" if worth > price else "no longer gains"
    notes = (
        _best(best),
        f"Beyond N = {last.n} the curve {slope}: token {last.n + 1} is worth alpha^(N+1) (1 + N c) = {worth:.4f}"
        f" and costs c E(N) = {price:.4f}.",
        f"Speculation pays at some N only if alpha > c = {cost:g}.",
    )
    curve = [asdict(point) for point in points]
    table = tuple((*point.values(), even) for point, even in zip(curve, break_even, strict=True))
    data = {
        "alpha": alpha,
        "cost": cost,
        "best_n": best.n,
        "speedup": best.speedup,
        "curve": curve,
        "break_even_alpha": [{"n": point.n, "alpha": even} for point, even in zip(points, break_even, strict=True)],
    }
    return Answer(data, ("n", "tokens_per_call", "relative_time", "speedup", "break_even_alpha"), table, notes)


def _best(best: Optimum) -> str:
    if best.n is None:
        limit = "without bound" if best.speedup is None else f"towards {best.speedup:.4f}x"
        return f"No best N: every further token pays, and the speed-up grows {limit}."
    if best.n == 0:
        return "Best N = 0: leave speculation off."
    return f"Best N = {best.n} of all N: {best.speedup:.4f}x."


def grid_answer(alphas: Sequence[float], numbers: Sequence[int], tokens: Sequence[Sequence[float]]) -> Answer:
    data = {"alphas": list(alphas), "n": list(numbers), "tokens_per_call": [list(row) for row in tokens]}
    rows = tuple((n, *(row[i] for row in tokens)) for i, n in enumerate(numbers))
    return Answer(data, ("n", *(f"alpha {alpha:g}" for alpha in alphas)), rows)


def alpha_answer(points: Sequence[QualityPoint]) -> Answer:
    header = ("level", "one_minus_tv", "alpha", "standard_error", "accepted_over_drafted")
    rows = tuple(
        (
            point.level,
            point.exact,
            point.measured.alpha,
            point.measured.standard_error,
            point.measured.acceptance_rate,
        )
        for point in points
    )
    by_position = [list(point.measured.by_position) for point in points]
    data = {
        "points": [
            {**dict(zip(header, row, strict=True)), "a_k": a_k} for row, a_k in zip(rows, by_position, strict=True)
        ]
    }
    return Answer(data, header, rows)


def load_answer(points: Sequence[LoadPoint]) -> Answer:
    listed = [asdict(point) for point in points]
    capped = [str(point.batch) for point in points if point.at_n_max]
    notes = ["Times are in passes over the target's weights: a plain step at low load lasts 1."]
    if capped:
        notes.append(f"At batch {', '.join(capped)} the best N is the last one given: raise --n-max.")
    header = ("batch", "best_n", "tokens_per_call", "step_time", "plain_time", "speedup")
    rows = tuple(tuple(point[name] for name in header) for point in listed)
    return Answer({"points": listed}, header, rows, tuple(notes))


def step_answer(steps: Sequence[TracedStep]) -> Answer:
    header = ("context", "drafted", "accepted", "emitted", "closed_by")
    rows = tuple((_joined(s.context), _joined(s.drafted), s.accepted, _joined(s.emitted), s.closed_by) for s in steps)
    return Answer({"steps": [asdict(step) for step in steps]}, header, rows)


def verify_answer(result: Verification) -> Answer:
    header = ("loop", "rejected", "chi2", "p_value", "p_first_token", "power", "steps_for_95_percent_power")
    lossless = result.against_q
    rows = (
        ("lossless", lossless.rejected, lossless.chi2, lossless.p_value, result.first_token.p_value, None, None),
        *(
            (v.name, v.rejected, v.joint.chi2, v.joint.p_value, v.first_token.p_value, v.power, v.steps_needed)
            for v in result.variants
        ),
    )
    notes = (
        f"Law of the first {result.first_k} tokens over {result.steps} sequences, N = {result.n}:",
        _sentence("against the exact q", lossless),
        _sentence(f"against {result.steps} direct samples", result.against_samples),
        f"tokens per step {result.tokens_per_step:.4f}, exact {result.tokens_per_step_exact:.4f}",
        "passed" if result.passed else "FAILED",
    )
    variants = [
        {
            "name": v.name,
            "rejected": v.rejected,
            "p_value": v.joint.p_value,
            "first_token_p_value": v.first_token.p_value,
            "power": v.power,
            "steps_for_95_percent_power": v.steps_needed,
        }
        for v in result.variants
    ]
    data = {
        "passed": result.passed,
        **asdict(lossless),
        "broken_variants": variants,
        "two_sample": asdict(result.against_samples),
        "first_token": asdict(result.first_token),
        **{name: getattr(result, name) for name in ("steps", "seed", "n", "first_k")},
        "tokens_per_step": result.tokens_per_step,
        "tokens_per_step_exact": result.tokens_per_step_exact,
    }
    return Answer(data, header, rows, notes)


# Nodes; the mask grows with their square.
LARGEST_MASK = 256
SHOWN_FIGURES = 16


def tree_answer(study: TreeStudy) -> Answer:
    nodes = study.tree.nodes
    rows = (
        ("tree", nodes, study.tree.depth, study.tokens_per_call),
        ("chain of equal nodes", nodes, nodes - 1, study.chain_equal_nodes),
        ("chain of equal draft calls", study.tree.depth + 1, study.tree.depth, study.chain_equal_calls),
        ("same tree, top-k drafting", nodes, study.tree.depth, study.static_top_k),
        ("dynamic trees, top-k drafting", study.dynamic.nodes, study.tree.depth, study.dynamic.tokens_per_call),
    )
    notes = (
        f"alpha per leaf: {_figures(study.alpha_per_leaf)}",
        f"alpha per depth: {_figures(study.alpha_per_depth)}",
        f"Law of the first {study.first_k} tokens over {study.steps} sequences:",
        *(_sentence(check.name, check.test) for check in (study.check, *study.broken)),
    )
    data = {
        "tokens_per_call": study.tokens_per_call,
        "chain_equal_nodes": study.chain_equal_nodes,
        "chain_equal_calls": study.chain_equal_calls,
        "alpha_per_leaf": list(study.alpha_per_leaf),
        "alpha_per_depth": list(study.alpha_per_depth),
        "nodes": nodes,
        "node_acceptance": list(study.node_acceptance),
        "static_top_k": study.static_top_k,
        "dynamic": asdict(study.dynamic),
        "parents": list(study.tree.parents),
        "positions": list(study.tree.positions),
        "attention_mask": study.tree.attention_mask().astype(int).tolist() if nodes <= LARGEST_MASK else None,
        "lossless": asdict(study.check.test),
        "broken_variants": [
            {"name": check.name, "rejected": check.test.rejected, "p_value": check.test.p_value}
            for check in study.broken
        ],
    }
    return Answer(data, ("draft", "nodes", "draft_calls", "tokens_per_call"), rows, notes)


POLICIES = ("scratch_commit", "truncate")


def kv_answer(accepted: Sequence[int], shown: Demonstration) -> Answer:
    by_policy: dict[str, tuple[Settled, ...]] = {"scratch_commit": shown.scratch_commit, "truncate": shown.truncate}
    counts = ("kv_length", "written", "wasted", "copied", "blocks_held", "blocks_at_peak")
    rows = tuple(
        (sequence, policy, kept, *asdict(by_policy[policy][sequence]).values())
        for sequence, kept in enumerate(accepted)
        for policy in POLICIES
    )
    data = {
        "sequences": [
            {
                "sequence": sequence,
                "accepted": kept,
                **{policy: asdict(by_policy[policy][sequence]) for policy in POLICIES},
            }
            for sequence, kept in enumerate(accepted)
        ],
        "same_text": shown.same_text,
    }
    same = "the same text" if shown.same_text else "DIFFERENT texts"
    return Answer(data, ("sequence", "policy", "accepted", *counts), rows, (f"Both policies leave {same} visible.",))


def _sentence(what: str, test: Chi2Test) -> str:
    verdict = "rejected" if test.rejected else "not rejected"
    return (
        f"  {what}: chi2 {test.chi2:.2f}, df {test.df}, critical value at 95 % {test.critical_95:.2f},"
        f" p {cell(test.p_value)}: {verdict}"
    )


def _figures(values: Sequence[float]) -> str:
    shown = ", ".join(f"{value:.4f}" for value in values[:SHOWN_FIGURES])
    rest = len(values) - SHOWN_FIGURES
    return f"{shown} and {rest} more, all in --json" if rest > 0 else shown


def _joined(tokens: Sequence[int]) -> str:
    return " ".join(str(token) for token in tokens)

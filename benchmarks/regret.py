"""How much is lost by launching little: the planner against rivals on truths that are known.

    python benchmarks/regret.py [--truths 200] [--seed 0] [--json]

Regret of a study: the mean over its loads of how much slower (true median TPOT) the advised setting is than the best
of all 25. The planner is tuner's own, driven through ask, tell and recommend as a study drives it, with a third of the
grid's launches; rivals get as many launches as it used. `launch_share`: launches over the grid's.
"""

from __future__ import annotations

import os

# Threads cost more than they bring on products this small; numpy reads this when it is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import json
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
from regret_rivals import rivals
from regret_truth import ARMS, NS, SETTINGS, Truth, truth

from tuner.decide.evidence import Evidence, gather, with_trial
from tuner.decide.plan import ask, predictions
from tuner.decide.rank import Recommendation, recommend
from tuner.spec.speculation import OFF, SpecConfig

BUDGET = len(SETTINGS) // 3
PLANNER, CHECKS = "tuner", "checks"
CHECKED = ("measured", "predicted", "error", "false win")


def regret(truth: Truth, choice: Sequence[SpecConfig]) -> float:
    """Mean over loads of true TPOT of the choice over the best there is, minus 1."""
    table = np.stack([truth.medians_s[spec] for spec in SETTINGS])
    own = np.array([truth.medians_s[spec][i] for i, spec in enumerate(choice)])
    return float((own / table.min(axis=0) - 1).mean())


def study(truth: Truth, budget: int) -> Evidence:
    """tuner's planner against a truth, until it stops."""
    evidence = gather([], "tpot_p50", seed=truth.seed)
    while (asked := ask(ARMS, evidence, budget - len(evidence.tried))) is not None:
        evidence = with_trial(evidence, truth.trial(asked.spec, len(evidence.tried) + 1, asked.role))
    return evidence


def choice_of(truth: Truth, told: Recommendation) -> list[SpecConfig]:
    best = {verdict.key: verdict.best for verdict in told.verdicts}
    return [best.get(key, OFF) for key in truth.keys]


def equal_arms(truth: Truth) -> bool:
    """Whether a win is claimed anywhere for a setting that is off by another name."""
    twin = ARMS[-1].at(NS[0])
    seen = [replace(one, histogram=np.zeros((len(one.steps), 2))) for one in truth.measure(OFF, again=2)]
    trial = truth.trial_of(twin, 2, "explore", seen)
    told = recommend(gather([truth.trial(OFF, 1, "baseline"), trial], "tpot_p50", seed=truth.seed))
    return any(verdict.on for verdict in told.verdicts) or not told.overall.best.is_off


def check_intervals(truth: Truth, evidence: Evidence, told: Recommendation) -> dict[str, float]:
    """One comparison a study, at random, so that studies count alike; and one prediction of what was not launched."""
    rng, found = np.random.default_rng([truth.seed, 4]), {}
    places = {key: i for i, key in enumerate(truth.keys)}
    ratios = [(c, c.ratio) for v in told.verdicts for c in v.comparisons if c.ratio is not None]
    if ratios:
        compared, ratio = ratios[int(rng.integers(len(ratios)))]
        i = places[compared.key]
        true = truth.medians_s[OFF][i] / truth.medians_s[compared.spec][i]
        found["measured"] = float(ratio.low <= true <= ratio.high)
    launched = {one.spec for one in evidence.tried}
    unseen = [p for p in predictions(ARMS, evidence) if p.spec not in launched]
    if unseen:
        p = unseen[int(rng.integers(len(unseen)))]
        true_s = truth.means_s[p.spec][places[p.key]]
        found["predicted"] = float(p.tpot_s.low <= true_s <= p.tpot_s.high)
        found["error"] = abs(p.tpot_s.value / true_s - 1)
    return found


def run_one(place: tuple[int, int]) -> dict[str, dict[str, float]]:
    """All strategies on one truth. `place`: (seed, number)."""
    seed, number = place
    world = truth(seed * 1_000_003 + number)
    evidence = study(world, BUDGET)
    told = recommend(evidence)
    used = len(evidence.tried)
    found = {PLANNER: {"regret": regret(world, choice_of(world, told)), "launches": float(used)}}
    for name, rival in rivals().items():
        launches = len(SETTINGS) if name == "full grid" else used
        found[name] = {"regret": regret(world, rival(world, used, seed)), "launches": float(launches)}
    checks = check_intervals(world, evidence, told) | {"false win": float(equal_arms(world))}
    return found | {CHECKS: checks}


def summary(rows: Sequence[dict[str, dict[str, float]]]) -> dict[str, dict[str, dict[str, float]]]:
    strategies = {}
    for name in (name for name in rows[0] if name != CHECKS):
        regrets = [row[name]["regret"] for row in rows]
        strategies[name] = {
            "mean_regret": float(np.mean(regrets)),
            "p95_regret": float(np.quantile(regrets, 0.95)),
            "launch_share": float(np.mean([row[name]["launches"] for row in rows])) / len(SETTINGS),
        }
    told = {name: [row[CHECKS][name] for row in rows if name in row[CHECKS]] for name in CHECKED}
    intervals = {
        "speedup_coverage": float(np.mean(told["measured"])),
        "predicted_coverage": float(np.mean(told["predicted"])),
        "predicted_median_error": float(np.median(told["error"])),
        "false_wins": float(np.mean(told["false win"])),
    }
    return {"strategies": strategies, "intervals": {"all": intervals}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--truths", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes; results do not depend on it")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    started_s = time.perf_counter()
    places = [(options.seed, number) for number in range(options.truths)]
    with ProcessPoolExecutor(options.workers) as pool:
        rows = list(pool.map(run_one, places, chunksize=4))
    made = summary(rows)
    result = {
        "truths": options.truths,
        "seed": options.seed,
        "settings": len(SETTINGS),
        "strategies": made["strategies"],
        "intervals": made["intervals"]["all"],
        "seconds": round(time.perf_counter() - started_s, 1),
    }
    print(json.dumps(result, indent=2) if options.json else _table(result))


def _table(result: dict[str, Any]) -> str:
    lines = [f"{result['truths']} truths, seed {result['seed']}, {result['settings']} settings each"]
    lines += ["", "| strategy | mean regret | p95 regret | launches, share of the grid |", "|---|---|---|---|"]
    for name, row in result["strategies"].items():
        cells = f"{row['mean_regret']:.2%} | {row['p95_regret']:.2%} | {row['launch_share']:.0%}"
        lines.append(f"| {name} | {cells} |")
    told = result["intervals"]
    lines += [
        "",
        f"95 % intervals of measured speed-ups hold the truth in {told['speedup_coverage']:.1%} of studies,",
        f"of predicted TPOT in {told['predicted_coverage']:.1%} (median error {told['predicted_median_error']:.1%}).",
        f"Of two equal arms one is called better in {told['false_wins']:.1%} of studies. {result['seconds']} s.",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()

"""How much is lost by launching little: the planner against rivals on truths that are known.

    python benchmarks/regret.py [--truths 200] [--seed 0] [--launch-noise 0] [--json]

Regret of a study: the mean over its loads of how much slower (true median TPOT) the advised setting is than the best
of all 25. The planner is tuner's own, driven through ask, tell and recommend as a study drives it, with a third of the
grid's launches; rivals get as many launches as it used. `launch_share`: launches over the grid's. Beside every regret
stands whether intervals hold the truth, one comparison and one prediction a study, and whether of two equal arms one is
called better, one such study a truth.
"""

from __future__ import annotations

import os

# Threads cost more than they bring on products this small; numpy reads this when it is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import itertools
import json
import math
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from regret_rivals import rivals
from regret_truth import ARMS, NS, SETTINGS, Truth, truth

from tuner.decide.evidence import Evidence, gather, with_trial
from tuner.decide.plan import ask, predictions
from tuner.decide.rank import Recommendation, recommend
from tuner.measure.statistics import wilson
from tuner.spec.speculation import OFF, SpecConfig

#: Seed, number of the truth, launch noise.
Place = tuple[int, int, float]
BUDGET = len(SETTINGS) // 3
PLANNER, CHECKS = "tuner", "checks"
NOISE_BANDS = (0.01, 0.02, 0.05, 0.1001)


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
    """Whether a win is claimed anywhere for a setting that is off by another name. Where launches differ as a whole,
    off is measured again, as in every study."""
    twin = ARMS[-1].at(NS[0])
    seen = [replace(one, histogram=np.zeros((len(one.steps), 2))) for one in truth.measure(OFF, again=2)]
    trial = truth.trial_of(twin, 2, "explore", seen)
    again = [truth.trial(OFF, 3, "baseline-again")] if truth.launch_noise else []
    told = recommend(gather([truth.trial(OFF, 1, "baseline"), trial, *again], "tpot_p50", seed=truth.seed))
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
        found["error"] = float(abs(p.tpot_s.value / true_s - 1))
    return found


def run_one(place: Place) -> dict[str, dict[str, float]]:
    """All strategies on one truth. `place`: (seed, number, launch noise)."""
    seed, number, launch_noise = place
    world = truth(seed * 1_000_003 + number, launch_noise)
    evidence = study(world, BUDGET)
    told = recommend(evidence)
    used = len(evidence.tried)
    found = {PLANNER: {"regret": regret(world, choice_of(world, told)), "launches": float(used)}}
    for name, rival in rivals().items():
        launches = len(SETTINGS) if name == "full grid" else used
        found[name] = {"regret": regret(world, rival(world, used, seed)), "launches": float(launches)}
    checks = check_intervals(world, evidence, told) | {"false win": float(equal_arms(world))}
    return found | {CHECKS: checks | {"noise": world.laws.noise}}


def run_all(places: Sequence[Place], workers: int | None, kept: Path | None) -> list[dict[str, Any]]:
    """Rows in the order of `places`. `kept`: one line a finished truth; those that are there are not run again."""
    lines = kept.read_text(encoding="utf-8").splitlines() if kept and kept.exists() else []
    done: dict[Place, dict[str, Any]] = {tuple(one["place"]): one["row"] for one in map(json.loads, lines)}
    missing = [place for place in places if place not in done]
    with ProcessPoolExecutor(workers) as pool:
        for place, row in zip(missing, pool.map(run_one, missing, chunksize=4), strict=True):
            done[place] = row
            if kept:
                with kept.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"place": place, "row": row}) + "\n")
    return [done[place] for place in places]


def summary(rows: Sequence[dict[str, dict[str, float]]]) -> dict[str, Any]:
    strategies = {}
    for name in (name for name in rows[0] if name != CHECKS):
        regrets = [row[name]["regret"] for row in rows]
        strategies[name] = {
            "mean_regret": float(np.mean(regrets)),
            "mean_regret_se": float(np.std(regrets) / np.sqrt(len(regrets))),
            "p95_regret": float(np.quantile(regrets, 0.95)),
            "launch_share": float(np.mean([row[name]["launches"] for row in rows])) / len(SETTINGS),
        }
    checks = [row[CHECKS] for row in rows]
    bands = {
        f"noise {low:.0%} to {high:.0%}": rate_of(checks, "measured", low, high)
        for low, high in itertools.pairwise(NOISE_BANDS)
    }
    errors = [check["error"] for check in checks if "error" in check]
    return {
        "strategies": strategies,
        "speedup_coverage": rate_of(checks, "measured"),
        "speedup_coverage_by_noise": bands,
        "predicted_coverage": rate_of(checks, "predicted"),
        "predicted_median_error": float(np.median(errors)) if errors else None,
        "false_wins": rate_of(checks, "false win"),
    }


def rate_of(checks: Sequence[dict[str, float]], name: str, low: float = 0.0, high: float = 1.0) -> dict[str, float]:
    """Share of studies, with its own 95 % interval (Wilson 1927), of truths with noise from `low` to `high`."""
    seen = [check[name] for check in checks if name in check and low <= check["noise"] < high]
    n, hits = len(seen), sum(seen)
    if not n:
        return {"rate": math.nan, "low": 0.0, "high": 1.0, "n": 0}
    rate = hits / n
    least, most = wilson(rate, n)
    return {"rate": rate, "low": least, "high": most, "n": n}


def conditions() -> dict[str, Any]:
    """What a figure hangs on beside the seed, and what its seconds hang on."""
    import platform
    from datetime import UTC, datetime
    from importlib import metadata

    try:
        optuna = metadata.version("optuna")
    except metadata.PackageNotFoundError:
        optuna = None
    return {
        "command": " ".join(["python", "benchmarks/regret.py", *sys.argv[1:]]),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "optuna": optuna,
        "cores": os.cpu_count(),
        "load_1m": round(os.getloadavg()[0], 1),
        "nice": os.nice(0),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--truths", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--launch-noise", type=float, default=0.0, help="launches differ as a whole, sd as a share")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes; results do not depend on it")
    parser.add_argument("--rows", type=Path, help="file of finished truths, to go on with when run again")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    started_s, at = time.perf_counter(), conditions()
    places = [(options.seed, number, options.launch_noise) for number in range(options.truths)]
    rows = run_all(places, options.workers, options.rows)
    result: dict[str, Any] = {
        "truths": options.truths,
        "seed": options.seed,
        "settings": len(SETTINGS),
        **summary(rows),
        "conditions": at,
        "seconds": round(time.perf_counter() - started_s, 1),
    }
    print(json.dumps(result, indent=2) if options.json else table(result))


def table(result: dict[str, Any]) -> str:
    """Markdown: what stands in docs/planning.md."""
    lines = ["| strategy | mean regret | p95 regret | launches, share of the grid |", "|---|---|---|---|"]
    for name, row in result["strategies"].items():
        mean = f"{row['mean_regret']:.2%} ± {1.96 * row['mean_regret_se']:.2%}"
        lines.append(f"| {name} | {mean} | {row['p95_regret']:.2%} | {row['launch_share']:.0%} |")
    shown = {name: shown_rate(result[name]) for name in ("speedup_coverage", "predicted_coverage", "false_wins")}
    bands = "; ".join(f"{band}: {shown_rate(rate)}" for band, rate in result["speedup_coverage_by_noise"].items())
    lines += [
        "",
        f"{result['truths']} truths of seed {result['seed']}, {result['settings']} settings each; ± and brackets are "
        "95 % intervals.",
        "",
        f"- The 95 % interval of a measured speed-up holds the truth in {shown['speedup_coverage']} studies.",
        f"  By noise of a request: {bands}.",
        f"- Of two equal arms one is called better in {shown['false_wins']} studies.",
        f"- The interval of a predicted TPOT holds the truth in {shown['predicted_coverage']} studies; median error "
        f"{result['predicted_median_error']:.1%}.",
    ]
    return "\n".join(lines)


def shown_rate(rate: dict[str, float]) -> str:
    return f"{rate['rate']:.1%} [{rate['low']:.1%}, {rate['high']:.1%}] of {rate['n']:.0f}"


if __name__ == "__main__":
    main()

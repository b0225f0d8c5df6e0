"""What other tuners do with as many launches: every setting, a coarse grid, random settings, TPE, successive halving.

Each returns, by load, the setting that measured best (lowest median TPOT), off among them. Rivals may spend on settings
what tuner spends on measuring off a second time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from regret_truth import ARMS, NS, SETTINGS, Array, Truth

from tuner.spec.speculation import OFF, SpecConfig

Choice = list[SpecConfig]


def full_grid(truth: Truth, launches: int, seed: int) -> Choice:
    return _best(_measured(truth, SETTINGS))


def coarse_grid(truth: Truth, launches: int, seed: int) -> Choice:
    """Off, and settings as far from each other as the launches allow."""
    picks = np.linspace(1, len(SETTINGS) - 1, launches - 1).round().astype(int)
    return _best(_measured(truth, [OFF, *(SETTINGS[i] for i in picks)]))


def random_search(truth: Truth, launches: int, seed: int) -> Choice:
    picks = np.random.default_rng([seed, truth.seed]).choice(len(SETTINGS) - 1, size=launches - 1, replace=False) + 1
    return _best(_measured(truth, [OFF, *(SETTINGS[i] for i in picks)]))


def halving(truth: Truth, launches: int, seed: int) -> Choice:
    """Rungs of a quarter, half and all of the requests; a launch counts as the share of requests it sent.

    That is generous: a start costs as much whatever it measures.
    """
    rng = np.random.default_rng([seed, truth.seed])
    first = min(len(SETTINGS) - 1, int((launches - 1) / 0.75))
    alive = [SETTINGS[i + 1] for i in rng.choice(len(SETTINGS) - 1, size=first, replace=False)]
    seen = _measured(truth, [OFF])
    for share in (0.25, 0.5, 1.0):
        seen |= _measured(truth, alive, share)
        ranked = sorted(alive, key=lambda spec: float(np.log(seen[spec]).mean()))
        alive = ranked[: max(1, len(ranked) // 2)] if share < 1 else ranked
    return _best({spec: seen[spec] for spec in (OFF, *alive)})


def tpe(truth: Truth, launches: int, seed: int) -> Choice:
    """Optuna's TPE over (draft, N), minimising the mean logarithm of TPOT over loads."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=seed * 100_003 + truth.seed, n_startup_trials=3)
    study = optuna.create_study(sampler=sampler)
    seen = _measured(truth, [OFF])
    while len(seen) < launches:
        trial = study.ask()
        arm = trial.suggest_categorical("draft", list(range(len(ARMS))))
        spec = ARMS[arm].at(trial.suggest_int("n", NS[0], NS[-1]))
        # A setting seen before costs no launch.
        seen |= _measured(truth, [spec])
        study.tell(trial, float(np.log(seen[spec]).mean()))
        if trial.number > 4 * launches:
            break
    return _best(seen)


def rivals() -> dict[str, Callable[[Truth, int, int], Choice]]:
    """By name; TPE only where Optuna is installed (`pip install 'eagle3-tuner[bench]'`)."""
    found: dict[str, Callable[[Truth, int, int], Choice]] = {
        "full grid": full_grid,
        "coarse grid": coarse_grid,
        "random": random_search,
        "successive halving": halving,
    }
    try:
        import optuna  # noqa: F401
    except ImportError:
        return found
    return found | {"optuna tpe": tpe}


def _measured(truth: Truth, specs: Sequence[SpecConfig], share: float = 1.0) -> dict[SpecConfig, Array]:
    """Measured median TPOT by load, from the first `share` of the requests."""
    return {
        spec: np.array([np.median(one.tpots_s[: int(len(one.tpots_s) * share)]) for one in truth.measure(spec)])
        for spec in specs
    }


def _best(seen: Mapping[SpecConfig, Array]) -> Choice:
    loads = len(next(iter(seen.values())))
    return [min(seen, key=lambda spec: float(seen[spec][i])) for i in range(loads)]

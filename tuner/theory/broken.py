"""Known-broken chain loops, each a mistake that serving code has made: what the statistical test must reject."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tuner.theory.chain import ChainRules, lossless
from tuner.theory.markov import Markov
from tuner.theory.rule import acceptance


def broken_variants(target: Markov, draft: Markov) -> dict[str, ChainRules]:
    """Name -> rules. Not to draft a bonus at all would be slower and still lossless; to lose a drawn one is not."""
    right = lossless(target, draft)
    argmax = np.eye(target.vocab)[target.rows.argmax(axis=1)]
    return {
        "accept with min(1, p/q)": replace(right, accept=acceptance(draft.rows, target.rows)),
        "resample from q, not the residual": replace(right, correction=target.rows),
        "drop the bonus": replace(right, loses_bonus=True),
        "greedy accept at T > 0": replace(right, accept=argmax),
        "stale KV after a rollback": replace(right, keeps_rejected=True),
    }

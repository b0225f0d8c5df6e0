"""Known-broken loops, each a mistake that serving code has made: what the statistical test must reject."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tuner.theory.chain import ChainRules, lossless
from tuner.theory.markov import IntArray, Markov
from tuner.theory.rule import FloatArray, acceptance, residual
from tuner.theory.siblings import Drafting, SiblingRule, proposal, sibling_stages


def broken_chains(target: Markov, draft: Markov) -> dict[str, ChainRules]:
    """Name -> rules. Not to draw a bonus at all would be slower and still lossless; to lose a drawn one is not."""
    right = lossless(target, draft)
    argmax = np.eye(target.vocab)[target.rows.argmax(axis=1)]
    return {
        "accept with min(1, p/q)": replace(right, accept=acceptance(draft.rows, target.rows)),
        "resample from q, not the residual": replace(right, correction=target.rows),
        "drop the bonus": replace(right, loses_bonus=True),
        "greedy accept at T > 0": replace(right, accept=argmax),
        "stale KV after a rollback": replace(right, keeps_rejected=True),
    }


def broken_siblings() -> dict[str, SiblingRule]:
    """Name -> rule at a node. All siblings are right for a single child; with more, only `sibling_stages` is."""
    return {
        "every sibling against q, not the residual": _against_q,
        "every sibling against the whole of p": _against_p,
        "correct from q when all siblings fail": _correct_from_q,
    }


def _against_q(q: FloatArray, p: FloatArray, tokens: IntArray, drafting: Drafting) -> tuple[FloatArray, FloatArray]:
    accept, leftover = sibling_stages(q, p, tokens, drafting)
    row, drawn = np.arange(len(q)), np.zeros(p.shape, dtype=np.bool_)
    for i in range(tokens.shape[1]):
        token, present = np.maximum(tokens[:, i], 0), tokens[:, i] >= 0
        law = proposal(p, drawn) if drafting == "sampled" else np.eye(q.shape[1])[token]
        accept[:, i] = np.where(present, acceptance(q[row, token], law[row, token]), 0.0)
        drawn[row[present], token[present]] = True
    return accept, leftover


def _against_p(q: FloatArray, p: FloatArray, tokens: IntArray, drafting: Drafting) -> tuple[FloatArray, FloatArray]:
    row, r = np.arange(len(q)), q
    accept = np.zeros(tokens.shape)
    for i in range(tokens.shape[1]):
        token, present = np.maximum(tokens[:, i], 0), tokens[:, i] >= 0
        accept[:, i] = np.where(present, acceptance(r[row, token], p[row, token]), 0.0)
        r = np.where(present[:, None], residual(r, p), r)
    return accept, r


def _correct_from_q(
    q: FloatArray, p: FloatArray, tokens: IntArray, drafting: Drafting
) -> tuple[FloatArray, FloatArray]:
    return sibling_stages(q, p, tokens, drafting)[0], q

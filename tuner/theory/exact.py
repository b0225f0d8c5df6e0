"""Exact laws by enumeration, without sampling: what a step emits, where it ends, what many steps write."""

from __future__ import annotations

import numpy as np

from tuner.theory.chain import ChainRules
from tuner.theory.rule import FloatArray

# law[e][s, text, end]: probability that a step begun in state s emits exactly the e tokens of `text` (read in base
# vocab) and leaves the context in state `end`.
StepLaw = list[FloatArray]


def chain_law(rules: ChainRules, n: int) -> StepLaw:
    """The law of one step with N drafted, from the tables the sampler uses; built from the last position back."""
    law = [_empty(rules, 0), _empty(rules, 1)]
    law[0 if rules.loses_bonus else 1] = _full_acceptance(rules)
    rejection = _rejection(rules)
    kept = rules.draft.rows * rules.accept
    successors = rules.draft.successors()
    for _ in range(n):
        law = [_empty(rules, 0)] + [prepend(kept, successors, rest) for rest in law]
        law[1] = law[1] + rejection
    return law


def prepend(weight: FloatArray, successors: np.ndarray, rest: FloatArray) -> FloatArray:
    """The law of a first token, of probability weight[s, token], followed by `rest` from the state it leads to."""
    states, vocab = weight.shape
    later: FloatArray = weight[:, :, None, None] * rest[successors]
    return later.reshape(states, vocab * rest.shape[1], states)


def _empty(rules: ChainRules, emitted: int) -> FloatArray:
    return np.zeros((rules.draft.states, rules.draft.vocab**emitted, rules.draft.states))


def _full_acceptance(rules: ChainRules) -> FloatArray:
    ends = _ends(rules)
    one_token = rules.bonus[:, :, None] * ends
    return one_token.sum(axis=1, keepdims=True) if rules.loses_bonus else one_token


def _ends(rules: ChainRules) -> FloatArray:
    """(states, vocab, states): 1 where the token leads to the state."""
    return np.asarray(np.eye(rules.draft.states)[rules.draft.successors()])


def _rejection(rules: ChainRules) -> FloatArray:
    rejected = rules.draft.rows * (1.0 - rules.accept)
    if not rules.keeps_rejected:
        return np.asarray(rejected.sum(axis=1)[:, None, None] * rules.correction[:, :, None] * _ends(rules))
    after_both = _ends(rules)[rules.draft.successors()]
    return np.asarray(np.einsum("sd,sc,sdce->sce", rejected, rules.correction, after_both))


def written_law(law: StepLaw, k: int) -> FloatArray:
    """(states, vocab**k): the exact distribution of the first k tokens that repeated steps write."""
    if law[0].any():
        raise ValueError("a step that may emit nothing writes no text of known length")
    states, vocab = law[1].shape[:2]
    written = [np.ones((states, 1))]
    for length in range(1, k + 1):
        total = np.zeros((states, vocab**length))
        for emitted, part in enumerate(law[1:], start=1):
            if emitted >= length:
                total += part.sum(axis=2).reshape(states, vocab**length, -1).sum(axis=2)
            else:
                more = np.einsum("ste,er->str", part, written[length - emitted])
                total += more.reshape(states, -1)
        written.append(total)
    return written[k]


def tokens_per_step(law: StepLaw) -> FloatArray:
    """(states,): the exact mean number of tokens a step emits, begun in each state."""
    return np.asarray(sum(emitted * part.sum(axis=(1, 2)) for emitted, part in enumerate(law)))

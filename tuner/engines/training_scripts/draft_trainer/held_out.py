"""Acceptance on held-out answers without an engine: greedy drafts against the target's own greedy tokens."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from draft_trainer.corpus import Corpus
from draft_trainer.heads import Draft

#: Drafted tokens that are looked at, and padded tokens of one batch.
DEPTH, ROWS = 7, 2048


def acceptance(draft: Draft, corpus: Corpus, seed: int) -> dict[str, Any]:
    """By prompt set and over all: starts, a_k and alpha_k.

    Starts are all places of the answers (every eighth for a draft model), whether a draft before accepted up to there
    or not; an engine's drafts begin where the last one failed, so that its a_k are other averages of the same head.
    """
    counts: dict[str, torch.Tensor] = {}
    for chosen in corpus.epoch(0, ROWS, seed):
        batch = corpus.batch(chosen)
        if not len(batch.rows):
            continue
        drafted = draft.drafted(batch, DEPTH)
        for index, source in enumerate(corpus.documents[i].answer.source for i in chosen):
            here = batch.rows // batch.width == index
            found = chain_counts(
                drafted[here], batch.tokens[index], batch.positions(batch.rows[here]), int(batch.lengths[index])
            )
            counts[source] = counts.get(source, torch.zeros_like(found)) + found
    whole = torch.stack(list(counts.values())).sum(0)
    return {"all": shares(whole.tolist())} | {name: shares(counts[name].tolist()) for name in sorted(counts)}


def chain_counts(drafted: torch.Tensor, tokens: torch.Tensor, positions: torch.Tensor, length: int) -> torch.Tensor:
    """[depth, 2]: starts whose answer is long enough to judge the k-th token with all before it accepted, and accepted.

    drafted [starts, depth], -1 where nothing was drafted; tokens of the document; positions of the starts.
    """
    depth = drafted.shape[1]
    counts = torch.zeros(depth, 2, dtype=torch.long)
    alive = drafted[:, 0] >= 0
    # A start too near the end says nothing of deeper tokens: only those that can be judged to the last are counted.
    alive &= positions + 1 + depth < length
    for k in range(depth):
        wanted = tokens[(positions + 2 + k).clamp_max(len(tokens) - 1)]
        right = alive & (drafted[:, k] == wanted)
        counts[k] = torch.tensor([int(alive.sum()), int(right.sum())])
        alive = right
    return counts


def shares(counts: Sequence[Sequence[int]]) -> Mapping[str, Any]:
    """a_k: share of all starts that accepted the k-th token. alpha_k: of those that came to it; None where none did."""
    starts = counts[0][0]
    return {
        "starts": starts,
        "a": [right / starts if starts else None for _, right in counts],
        "alpha": [right / tried if tried else None for tried, right in counts],
    }

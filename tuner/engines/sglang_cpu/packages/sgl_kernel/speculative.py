"""Links of an n-gram tree, from its mask of ancestors."""

# mypy: ignore-errors
import torch

from .trees import link


def reconstruct_indices_from_tree_mask(
    tree_mask, seq_lens, positions, retrieve_index, next_token, next_sibling, bs, n
):  # fmt: skip
    """tree_mask: one n x n block a request, row i true at its ancestors and itself. Fills what tree building fills."""
    above = tree_mask.view(bs, n, n).bool().tril(-1)
    positions.copy_((above.sum(-1) + seq_lens.view(-1, 1)).flatten())
    retrieve_index.view(-1).copy_(torch.arange(bs * n))
    next_token.fill_(-1)
    next_sibling.fill_(-1)
    for b in range(bs):
        ancestors = [above[b, node].nonzero().flatten().tolist() for node in range(n)]
        link([row[-1] if row else None for row in ancestors], next_token.view(bs, n)[b], next_sibling.view(bs, n)[b])

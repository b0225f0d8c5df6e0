"""Draft trees: built from the drafter's picks, and verified along the target's greedy choices."""

# mypy: ignore-errors
import torch


def build_tree_kernel_efficient_cpu(
    parent_list, selected, seq_lens, tree_mask, positions,
    retrieve_index, next_token, next_sibling, topk, depth, n, tree_mask_mode,
):  # fmt: skip
    """Ancestor masks, positions and links of one tree of n nodes a request; node 0 is the root.

    selected[b]: the n - 1 picks, ascending; pick p is a child of the root for p < topk, else of the pick that
    parent_list[b][p // topk] names. Fills tree_mask, positions, retrieve_index, next_token (first child) and
    next_sibling, where -1 (already there) is none.
    """
    bs = len(seq_lens)
    mask = torch.zeros(bs, n, n, dtype=torch.bool)
    mask[:, :, 0] = True
    for b in range(bs):
        parent_of = parents(selected[b].tolist(), parent_list[b].tolist(), topk)
        for node in range(1, n):
            if parent_of[node] is not None:
                mask[b, node] |= mask[b, parent_of[node]]
            mask[b, node, node] = True
        link(parent_of, next_token[b], next_sibling[b])
    retrieve_index.copy_(torch.arange(bs * n).view(bs, n))
    positions.copy_((mask.sum(-1) - 1 + seq_lens.view(-1, 1)).flatten())
    tree_mask[: mask.numel()] = mask.flatten()


def parents(picks, parent_list, topk):
    """The parent of every node, the root's first; None where the parent's pick was not selected."""
    found = [None]
    for pick in picks:
        group = pick // topk
        if group == 0:
            found.append(0)
            continue
        parent = parent_list[group]
        found.append(picks.index(parent) + 1 if parent in picks else None)
    return found


def link(parent_of, next_token, next_sibling):
    """Children of a node in ascending order, as a linked list: first child, then sibling after sibling."""
    for node in reversed(range(1, len(parent_of))):
        parent = parent_of[node]
        if parent is not None:
            next_sibling[node] = next_token[parent]
            next_token[parent] = node


def verify_tree_greedy_cpu(
    predicts, accept_index, accept_token_num, candidates,
    retrive_index, retrive_next_token, retrive_next_sibling, target_predict,
):  # fmt: skip
    """Walk from the root to the child that the target would have chosen, as long as there is one.

    Fills accept_index with the nodes of the path (root first), predicts with the target's choice after each of them,
    and accept_token_num with the drafted tokens among them. Parameter names are SGLang's.
    """
    for b in range(len(candidates)):
        token, index, child_of, sibling_of, target = (
            t[b].tolist() for t in (candidates, retrive_index, retrive_next_token, retrive_next_sibling, target_predict)
        )
        path = [0]
        while len(path) < accept_index.shape[1]:
            child = child_of[path[-1]]
            while child != -1 and token[child] != target[path[-1]]:
                child = sibling_of[child]
            if child == -1:
                break
            path.append(child)
        for depth, node in enumerate(path):
            accept_index[b, depth] = index[node]
            predicts[index[node]] = target[node]
        accept_token_num[b] = len(path) - 1

"""Draft trees: their shape, attention mask and positions, and EAGLE-2's choice of the m most probable nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tuner.errors import UserError
from tuner.theory.draws import most_likely
from tuner.theory.markov import IntArray, Markov
from tuner.theory.rule import BoolArray

NO_NODE = -1
MAX_NODES = 4096


@dataclass(frozen=True, slots=True)
class Tree:
    """`parents[i]` < i is the node before node i; node 0 is the root, the last token emitted, with parent -1.

    Siblings are tried in the order of their numbers. The number of nodes, root included, is what one verify
    pass evaluates.
    """

    parents: tuple[int, ...]

    def __post_init__(self) -> None:
        wrong = [i for i, parent in enumerate(self.parents) if not (0 <= parent < i or (i == 0 and parent == -1))]
        if not self.parents or wrong:
            raise UserError("a tree lists each node's parent, -1 for the root first, and parents before children.")

    @property
    def nodes(self) -> int:
        return len(self.parents)

    @property
    def children(self) -> tuple[tuple[int, ...], ...]:
        found: list[list[int]] = [[] for _ in self.parents]
        for node, parent in enumerate(self.parents[1:], start=1):
            found[parent].append(node)
        return tuple(tuple(nodes) for nodes in found)

    @property
    def positions(self) -> tuple[int, ...]:
        """Position of each node after the last emitted token: its depth, shared by siblings."""
        depths = [0]
        for parent in self.parents[1:]:
            depths.append(depths[parent] + 1)
        return tuple(depths)

    @property
    def depth(self) -> int:
        return max(self.positions)

    @property
    def leaves(self) -> tuple[int, ...]:
        return tuple(node for node, children in enumerate(self.children) if not children)

    def path(self, node: int) -> tuple[int, ...]:
        """The nodes from the root to `node`, both included."""
        steps = [node]
        while steps[-1] != 0:
            steps.append(self.parents[steps[-1]])
        return tuple(reversed(steps))

    def attention_mask(self) -> BoolArray:
        """(nodes, nodes): row i sees its ancestors and itself, never a sibling; the prefix is seen by all."""
        mask = np.eye(self.nodes, dtype=np.bool_)
        for node, parent in enumerate(self.parents[1:], start=1):
            mask[node] |= mask[parent]
        return mask

    def child_table(self) -> IntArray:
        """(nodes, widest): the children of each node in order, then NO_NODE."""
        widest = max((len(nodes) for nodes in self.children), default=0)
        table = np.full((self.nodes, max(widest, 1)), NO_NODE, dtype=np.int64)
        for node, children in enumerate(self.children):
            table[node, : len(children)] = children
        return table


def from_branching(branching: Sequence[int]) -> Tree:
    """Every node at depth d has branching[d] children: [2, 2, 2] has 1 + 2 + 4 + 8 nodes."""
    if not branching or min(branching) < 1:
        raise UserError("branching must name at least 1 child at every depth, such as 2,2,2.")
    parents, layer = [-1], [0]
    for width in branching:
        first = len(parents)
        if first + len(layer) * width > MAX_NODES:
            raise UserError(f"this branching has over {MAX_NODES} nodes; take fewer children or a smaller depth.")
        parents += [parent for parent in layer for _ in range(width)]
        layer = list(range(first, len(parents)))
    return Tree(tuple(parents))


def chain(n: int) -> Tree:
    return from_branching([1] * n)


@dataclass(frozen=True, slots=True, eq=False)
class DraftedTree:
    """A tree whose tokens are settled by the draft's probabilities; `tokens[0]` is unused."""

    tree: Tree
    tokens: IntArray


def dynamic_tree(draft: Markov, state: int, depth: int, top_k: int, nodes: int) -> DraftedTree:
    """EAGLE-2 (arXiv 2406.16858): expand the `top_k` most probable nodes of each layer by `top_k` tokens each,
    then keep the `nodes` - 1 most probable of all, where a node's probability is the draft's for its whole path.

    At most top_k + (depth - 1) top_k^2 nodes are candidates beside the root. A child is never more probable than
    its parent and ties go to the earlier node, so what is kept is always a tree.
    """
    if depth < 1 or top_k < 1 or nodes < 2:
        raise UserError("a dynamic tree needs depth and top-k of at least 1 and at least 2 nodes, root included.")
    width = min(top_k, draft.vocab)
    parents, tokens, states, values = [-1], [0], [state], [1.0]
    layer = [0]
    for _ in range(depth):
        first = len(parents)
        for node in layer:
            for token in most_likely(draft.rows[states[node]][None, :], width)[0]:
                parents.append(node)
                tokens.append(int(token))
                states.append(int(draft.advance(states[node], token)))
                values.append(values[node] * float(draft.rows[states[node], token]))
        created = range(first, len(parents))
        layer = sorted(created, key=lambda node: -values[node])[:width]
    kept = sorted(sorted(range(len(parents)), key=lambda node: -values[node])[:nodes])
    number = {node: i for i, node in enumerate(kept)}
    tree = Tree(tuple(number.get(parents[node], -1) for node in kept))
    return DraftedTree(tree, np.array([tokens[node] for node in kept], dtype=np.int64))

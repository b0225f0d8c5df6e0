"""Two ways to undo rejected tokens in a paged KV cache; both must leave the same visible text, chain or tree.

A verify pass runs over the pending token (the last one emitted, whose K/V is not yet cached) and all drafted ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tuner.errors import UserError
from tuner.theory.kv import Entry, PagedCache, context_after
from tuner.theory.tree import Tree, from_branching
from tuner.theory.tree import chain as chain_tree


@dataclass(frozen=True, slots=True)
class Pass:
    """One sequence's part of a verify pass: a tree, its tokens (the root's is the pending one), the kept path."""

    tree: Tree
    tokens: tuple[int, ...]
    path: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.tokens) != self.tree.nodes:
            raise UserError(f"the tree has {self.tree.nodes} nodes and {len(self.tokens)} tokens were given.")
        if not self.path or self.path != self.tree.path(self.path[-1]):
            raise UserError("the kept path must lead from the root along parents and children.")

    def entries(self, length: int, context: int) -> tuple[Entry, ...]:
        """What the pass writes, node by node: under the tree mask a node sees the text, then its ancestors."""
        written = [Entry(self.tokens[0], length, context)]
        for node, parent in enumerate(self.tree.parents[1:], start=1):
            above = written[parent]
            written.append(Entry(self.tokens[node], above.position + 1, context_after(above)))
        return tuple(written)


@dataclass(frozen=True, slots=True)
class Settled:
    """Counts are entries. `written` by the pass, `wasted` of them rejected, `copied` to where they belong."""

    kv_length: int
    written: int
    wasted: int
    copied: int
    blocks_held: int
    blocks_at_peak: int


class Policy(Protocol):
    """`write` for every sequence of the batch, as one pass does; then `settle` each, or `abandon` what was written.

    A `write` that finds too few free blocks raises and changes nothing; `settle` always has the blocks it needs.
    """

    def write(self, cache: PagedCache, sequence: int, made: Pass) -> None: ...

    def settle(self, cache: PagedCache, sequence: int, made: Pass) -> Settled: ...

    def abandon(self, cache: PagedCache, sequence: int) -> None: ...


class Truncate:
    """Write behind the text in place; then compact the kept path and move the logical length over it."""

    def write(self, cache: PagedCache, sequence: int, made: Pass) -> None:
        text = cache.length(sequence)
        cache.reserve(sequence, text + made.tree.nodes)
        for node, entry in enumerate(made.entries(text, cache.context(sequence))):
            cache.write(sequence, text + node, entry)

    def settle(self, cache: PagedCache, sequence: int, made: Pass) -> Settled:
        text, peak = cache.length(sequence), cache.held(sequence)
        copied = 0
        for i, node in enumerate(made.path):
            # Nodes are numbered parents first, so node >= i: moving left to right overwrites nothing still needed.
            if node != i:
                cache.write(sequence, text + i, cache.raw(sequence, text + node))
                copied += 1
        cache.set_length(sequence, text + len(made.path))
        return _settled(cache, sequence, made, copied, peak)

    def abandon(self, cache: PagedCache, sequence: int) -> None:
        cache.set_length(sequence, cache.length(sequence))


class ScratchCommit:
    """Write into blocks of its own; then copy the kept path behind the text and free the scratch."""

    def __init__(self) -> None:
        self._scratch: dict[int, list[int]] = {}

    def write(self, cache: PagedCache, sequence: int, made: Pass) -> None:
        longest = cache.length(sequence) + made.tree.depth + 1
        cache.require(cache.missing(sequence, longest) + cache.blocks_for(made.tree.nodes))
        cache.reserve(sequence, longest)
        scratch = self._scratch[sequence] = cache.take(cache.blocks_for(made.tree.nodes))
        for node, entry in enumerate(made.entries(cache.length(sequence), cache.context(sequence))):
            cache.write_block(scratch[node // cache.block_size], node % cache.block_size, entry)

    def settle(self, cache: PagedCache, sequence: int, made: Pass) -> Settled:
        text, scratch = cache.length(sequence), self._scratch[sequence]
        peak = cache.held(sequence) + len(scratch)
        for i, node in enumerate(made.path):
            kept = cache.read_block(scratch[node // cache.block_size], node % cache.block_size)
            cache.write(sequence, text + i, kept)
        cache.set_length(sequence, text + len(made.path))
        cache.give_back(self._scratch.pop(sequence))
        return _settled(cache, sequence, made, len(made.path), peak)

    def abandon(self, cache: PagedCache, sequence: int) -> None:
        cache.give_back(self._scratch.pop(sequence))
        cache.set_length(sequence, cache.length(sequence))


def verify_pass(cache: PagedCache, policy: Policy, batch: Mapping[int, Pass]) -> dict[int, Settled]:
    """One pass over the whole batch: everything is written before anything is accepted, or nothing is."""
    written: list[int] = []
    try:
        for sequence, made in batch.items():
            policy.write(cache, sequence, made)
            written.append(sequence)
    except UserError:
        for sequence in written:
            policy.abandon(cache, sequence)
        raise
    return {sequence: policy.settle(cache, sequence, made) for sequence, made in batch.items()}


MAX_PREFIX = 100_000


@dataclass(frozen=True, slots=True)
class Demonstration:
    """The same batch under both policies, and whether their visible texts agree entry by entry."""

    scratch_commit: tuple[Settled, ...]
    truncate: tuple[Settled, ...]
    same_text: bool


def demonstrate(
    n: int, accepted: Sequence[int], prefix: int, block_size: int, branching: Sequence[int] | None = None
) -> Demonstration:
    """One pass over len(accepted) sequences with `prefix` entries each; a tree's kept path goes by last children."""
    if n < 1:
        raise UserError(f"n is {n}; a pass drafts at least 1 token.")
    if not 0 <= prefix <= MAX_PREFIX:
        raise UserError(f"prefix is {prefix}; the simulated cache begins with 0 to {MAX_PREFIX} entries.")
    tree = chain_tree(n) if branching is None else from_branching(branching)
    wrong = [count for count in accepted if not 0 <= count <= tree.depth]
    if wrong or not accepted:
        shown = f"accepted {wrong[0]} is not between 0 and {tree.depth}" if wrong else "accepted is empty"
        raise UserError(f"{shown}; give how many drafted tokens each sequence keeps.")
    batch = {
        sequence: Pass(tree, tuple(range(tree.nodes)), _last_children(tree, count))
        for sequence, count in enumerate(accepted)
    }
    # Enough for every sequence's text, the whole pass in place, and as much scratch again.
    entries = prefix + 2 * tree.nodes
    needed = len(accepted) * (entries // max(block_size, 1) + 3)
    outcomes, texts = [], []
    for policy in (ScratchCommit(), Truncate()):
        cache = PagedCache(needed, block_size)
        for sequence in batch:
            cache.admit(sequence, range(prefix))
        outcomes.append(tuple(verify_pass(cache, policy, batch).values()))
        texts.append([cache.visible(sequence) for sequence in batch])
    return Demonstration(outcomes[0], outcomes[1], texts[0] == texts[1])


def _last_children(tree: Tree, count: int) -> tuple[int, ...]:
    path = [0]
    for _ in range(count):
        path.append(tree.children[path[-1]][-1])
    return tuple(path)


def _settled(cache: PagedCache, sequence: int, made: Pass, copied: int, peak: int) -> Settled:
    return Settled(
        kv_length=cache.length(sequence),
        written=made.tree.nodes,
        wasted=made.tree.nodes - len(made.path),
        copied=copied,
        blocks_held=cache.held(sequence),
        blocks_at_peak=peak,
    )

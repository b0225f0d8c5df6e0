"""From the drafts a workload names to the configurations worth trying, and the ones removed with a reason each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from tuner.spec.draft import Draft
from tuner.spec.speculation import AUTOREGRESSIVE_METHODS, DRAFT_METHODS, Scalar, SpecConfig, Tree

#: N worth trying where the workload names none. 24 is vLLM's own default depth of a suffix tree.
DEFAULT_N: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {
        "ngram": (2, 4),
        "suffix": (8, 24),
        "draft_model": (1, 2, 3, 4, 5),
        "eagle": (1, 2, 3, 4, 5),
        "eagle3": (1, 2, 3, 4, 5),
        "medusa": (1, 2, 3),
        "mtp": (1, 2, 3),
        "dflash": (7, 15),
        "dspark": (7,),
    }
)


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to draft with all its settings: chains by N, and trees."""

    method: str
    draft: str | None = None
    options: tuple[tuple[str, Scalar], ...] = ()
    ns: tuple[int, ...] = ()
    trees: tuple[Tree, ...] = ()

    @property
    def prefix_sum(self) -> bool:
        """Whether one chain run at the largest N tells tau of every smaller N."""
        return self.method in AUTOREGRESSIVE_METHODS

    def at(self, n: int) -> SpecConfig:
        return SpecConfig(self.method, n=n, draft=self.draft, options=self.options)

    def of(self, tree: Tree) -> SpecConfig:
        return SpecConfig(self.method, draft=self.draft, tree=tree, options=self.options)

    @property
    def chains(self) -> tuple[SpecConfig, ...]:
        return tuple(self.at(n) for n in self.ns)

    @property
    def configs(self) -> tuple[SpecConfig, ...]:
        return self.chains + tuple(self.of(tree) for tree in self.trees)


@dataclass(frozen=True, slots=True)
class Removed:
    """A setting that was asked for and is not tried."""

    what: str
    reason: str


def arm_of(draft: Draft, model: str | None) -> tuple[Arm, tuple[Removed, ...]]:
    """The arm of one `drafts` entry. `model`: its draft weights, already resolved."""
    if draft.n is None:
        ns: Sequence[int] = () if draft.tree else DEFAULT_N[draft.method]
    else:
        ns = [draft.n] if isinstance(draft.n, int) else draft.n
    trees, chains, removed = _trees(draft)
    weights = model if draft.method in DRAFT_METHODS or draft.method == "mtp" else None
    unique = tuple(sorted({*ns, *chains}))
    return Arm(draft.method, weights, tuple(draft.options.items()), unique, trees), removed


def _trees(draft: Draft) -> tuple[tuple[Tree, ...], set[int], tuple[Removed, ...]]:
    """(trees, N of those that are chains, removed): impossible and duplicate combinations leave with their reason."""
    trees: list[Tree] = []
    chains: set[int] = set()
    removed: list[Removed] = []
    for tree in _combinations(draft):
        shown = f"{draft.method} tree d={tree.depth} k={tree.topk} m={tree.nodes}"
        if tree.topk == 1:
            if tree.nodes != tree.depth + 1:
                reason = f"with topk 1 a tree is the chain N = {tree.depth}, whatever nodes says"
                removed.append(Removed(shown, reason))
            chains.add(tree.depth)
        elif tree.nodes > tree.most_nodes:
            bound = f"nodes - 1 <= topk + (depth - 1) * topk^2 = {tree.most_nodes - 1}"
            removed.append(Removed(shown, f"it cannot be filled: {bound}"))
        elif tree.nodes < 2:
            removed.append(Removed(shown, "it has no node to draft: nodes counts the root"))
        else:
            trees.append(tree)
    return tuple(trees), chains, tuple(removed)


def _combinations(draft: Draft) -> list[Tree]:
    axes = draft.tree
    if axes is None:
        return []
    return [Tree(d, k, m) for d in axes.depth for k in axes.topk for m in axes.nodes]

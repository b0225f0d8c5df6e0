"""From the drafts a workload names to the configurations worth trying, and the ones removed with a reason each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
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
    """One way to draft with all its settings: chains by N, and trees. `name`: as `SpecConfig` has it."""

    method: str
    draft: str | None = None
    options: tuple[tuple[str, Scalar], ...] = ()
    ns: tuple[int, ...] = ()
    trees: tuple[Tree, ...] = ()
    name: str = field(default="", compare=False)

    @property
    def prefix_sum(self) -> bool:
        """Whether one chain run at the largest N tells tau of every smaller N."""
        return self.method in AUTOREGRESSIVE_METHODS

    def at(self, n: int) -> SpecConfig:
        return SpecConfig(self.method, n=n, draft=self.draft, options=self.options, name=self.name)

    def of(self, tree: Tree) -> SpecConfig:
        return SpecConfig(self.method, draft=self.draft, tree=tree, options=self.options, name=self.name)

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


def named(arms: Sequence[Arm]) -> tuple[Arm, ...]:
    """The arms, with a name wherever two of one method would have the same labels.

    A draft is called by as much of its path's end as tells it from the others; options by those that differ.
    """
    found = list(arms)
    for method in dict.fromkeys(arm.method for arm in arms):
        same = [i for i, arm in enumerate(arms) if arm.method == method]
        if len(same) > 1:
            names = _names([arms[i] for i in same])
            for i, name in zip(same, names, strict=True):
                found[i] = replace(arms[i], name=name)
    return tuple(found)


def _names(arms: Sequence[Arm]) -> list[str]:
    drafts = [PurePath(arm.draft or "own layers").parts for arm in arms]
    different = len(set(drafts)) > 1
    tail = next((k for k in range(1, 9) if len({parts[-k:] for parts in drafts}) == len(set(drafts))), 9)
    shared = set.intersection(*(set(arm.options) for arm in arms))
    names = []
    for arm, parts in zip(arms, drafts, strict=True):
        own = [f"{key}={value}" for key, value in arm.options if (key, value) not in shared]
        plain = ["default options"] if not own and not different else []
        names.append(", ".join([*(["/".join(parts[-tail:])] if different else []), *own, *plain]))
    return names

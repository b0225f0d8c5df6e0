"""What a tree buys on a toy pair of models: against chains, against EAGLE-2's choice of nodes, and lossless or not."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tuner.theory.broken import broken_siblings
from tuner.theory.chain import check_steps, generate
from tuner.theory.chi2 import Chi2Test, goodness_of_fit
from tuner.theory.markov import Markov, draft_with_alpha, joint, random_target, stationary
from tuner.theory.rule import FloatArray
from tuner.theory.siblings import Drafting, SiblingRule, sibling_stages
from tuner.theory.tree import DraftedTree, Tree, chain, dynamic_tree, from_branching
from tuner.theory.tree_exact import dynamic_tokens_per_call, node_acceptance
from tuner.theory.tree_step import TreeStep
from tuner.theory.verify import count_texts

ORDER, MODEL_SEED = 1, 1
# The joint law is tested on as many first tokens as keep its cells below this.
MOST_CELLS = 1024
# Nodes times sequences drafted at once: bounds memory, not results.
AT_ONCE = 4_000_000


@dataclass(frozen=True, slots=True)
class DynamicTrees:
    """EAGLE-2 trees of the same depth, one a context; `nodes` counts the root, as everywhere."""

    top_k: int
    nodes: int
    tokens_per_call: float


@dataclass(frozen=True, slots=True)
class TreeCheck:
    name: str
    test: Chi2Test


@dataclass(frozen=True, slots=True)
class TreeStudy:
    """`node_acceptance[i]`: share of calls in which node i is kept. All figures but the checks are exact.

    A chain of equal nodes is verified as widely and calls the draft once a node; one of equal calls has the
    tree's depth. `static_top_k` is the same shape drafted by most likely tokens, as EAGLE-2 does.
    """

    tree: Tree
    alpha: float
    drafting: Drafting
    node_acceptance: tuple[float, ...]
    chain_equal_nodes: float
    chain_equal_calls: float
    static_top_k: float
    dynamic: DynamicTrees
    first_k: int
    steps: int
    check: TreeCheck
    broken: tuple[TreeCheck, ...]

    @property
    def tokens_per_call(self) -> float:
        return sum(self.node_acceptance)

    @property
    def alpha_per_leaf(self) -> tuple[float, ...]:
        """Share of calls in which the whole path to the leaf is kept."""
        return tuple(self.node_acceptance[leaf] for leaf in self.tree.leaves)

    @property
    def alpha_per_depth(self) -> tuple[float, ...]:
        """alpha_d: given that d - 1 tokens were kept, the chance that one more is."""
        reached = np.zeros(self.tree.depth + 1)
        np.add.at(reached, list(self.tree.positions), np.array(self.node_acceptance))
        return tuple(float(after / before) if before > 0.0 else 0.0 for before, after in itertools.pairwise(reached))


def study_tree(
    branching: Sequence[int],
    alpha: float = 0.8,
    vocab: int = 8,
    drafting: Drafting = "sampled",
    steps: int = 20_000,
    seed: int = 0,
) -> TreeStudy:
    """The toy target has contexts of one token; its draft keeps a single token with `alpha` in each of them."""
    check_steps(steps)
    tree, target = from_branching(branching), random_target(vocab, ORDER, MODEL_SEED)
    draft, start = draft_with_alpha(target, alpha, MODEL_SEED), stationary(target)

    def kept(shape: Tree, how: Drafting) -> FloatArray:
        return node_acceptance(target, draft, shape, start, how)

    nodes = kept(tree, drafting)
    first_k = max(1, min(tree.depth + 1, int(np.log(MOST_CELLS) / np.log(vocab))))
    checks = _checks(target, draft, tree, drafting, first_k, steps, seed)
    return TreeStudy(
        tree=tree,
        alpha=alpha,
        drafting=drafting,
        node_acceptance=tuple(float(share) for share in nodes),
        chain_equal_nodes=float(kept(chain(tree.nodes - 1), drafting).sum()),
        chain_equal_calls=float(kept(chain(tree.depth), drafting).sum()),
        static_top_k=float(kept(tree, "top-k").sum()),
        dynamic=_dynamic(target, draft, start, tree),
        first_k=first_k,
        steps=steps,
        check=checks[0],
        broken=checks[1:],
    )


def _checks(
    target: Markov, draft: Markov, tree: Tree, drafting: Drafting, first_k: int, steps: int, seed: int
) -> tuple[TreeCheck, ...]:
    """The lossless rule, then the broken ones; those differ from it only where a node has several children."""
    rules: dict[str, SiblingRule] = {"lossless rule": sibling_stages}
    if any(len(children) > 1 for children in tree.children):
        rules |= broken_siblings()
    streams = [np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(len(rules))]
    return tuple(
        TreeCheck(name, _check(TreeStep(target, draft, tree, drafting, rule), first_k, steps, stream))
        for (name, rule), stream in zip(rules.items(), streams, strict=True)
    )


def _dynamic(target: Markov, draft: Markov, start: FloatArray, tree: Tree) -> DynamicTrees:
    """As many nodes as the static tree has, from the narrowest expansion that offers that many."""
    top_k = 1
    while top_k < target.vocab and top_k + (tree.depth - 1) * top_k**2 < tree.nodes - 1:
        top_k += 1
    trees: list[DraftedTree] = [
        dynamic_tree(draft, state, tree.depth, top_k, tree.nodes) for state in range(target.states)
    ]
    nodes = max(drafted.tree.nodes for drafted in trees)
    return DynamicTrees(top_k, nodes, dynamic_tokens_per_call(target, trees, start))


def _check(step: TreeStep, first_k: int, steps: int, rng: np.random.Generator) -> Chi2Test:
    """Like the chain's: the joint law of the first k tokens of `steps` sequences against the exact one."""
    counts = np.zeros(step.target.vocab**first_k, dtype=np.int64)
    while steps > 0:
        batch = min(steps, max(1, AT_ONCE // step.tree.nodes))
        text = generate(step, np.zeros(batch, dtype=np.int64), first_k, rng)
        counts += count_texts(text, step.target.vocab)
        steps -= batch
    return goodness_of_fit(counts, joint(step.target, first_k)[0])

"""The speculative step on a tree, for many sequences at once: draft all nodes, evaluate them together, walk down."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator

from tuner.theory.chain import NO_TOKEN, Steps
from tuner.theory.draws import draw_rows
from tuner.theory.markov import IntArray, Markov
from tuner.theory.siblings import Drafting, SiblingRule, draft_siblings, sibling_stages
from tuner.theory.tree import DraftedTree, Tree


class TreeStep:
    """`step(state, rng)` for a fixed shape; tokens are drafted anew in every context."""

    __slots__ = ("_children", "_rule", "draft", "drafting", "target", "tree")

    def __init__(
        self,
        target: Markov,
        draft: Markov,
        tree: Tree,
        drafting: Drafting = "sampled",
        rule: SiblingRule = sibling_stages,
    ) -> None:
        self.target, self.draft, self.tree, self.drafting = target, draft, tree, drafting
        self._children, self._rule = tree.child_table(), rule

    def __call__(self, state: IntArray, rng: Generator) -> Steps:
        states = np.empty((self.tree.nodes, len(state)), dtype=np.int64)
        tokens = np.full((self.tree.nodes, len(state)), NO_TOKEN, dtype=np.int64)
        states[0] = state
        for node, children in enumerate(self.tree.children):
            if children:
                drawn = draft_siblings(self.draft.rows[states[node]], len(children), self.drafting, rng)
                for i, child in enumerate(children):
                    tokens[child] = drawn[:, i]
                    states[child] = self.draft.advance(states[node], drawn[:, i])
        return self.walk(states, tokens, rng)

    def walk(self, states: IntArray, tokens: IntArray, rng: Generator) -> Steps:
        """From the root down: at each node try the children in order, stop where none is kept and close there."""
        batch, depth = states.shape[1], self.tree.depth
        made = Steps.empty(batch, self.tree.nodes - 1, depth + 1)
        made.drafted[:], made.tokens[:] = tokens[1:].T, NO_TOKEN
        walking, at = np.arange(batch), np.zeros(batch, dtype=np.int64)
        for level in range(depth + 1):
            context = states[at, walking]
            children = self._children[at]
            candidates = np.where(children >= 0, tokens[children, walking[:, None]], NO_TOKEN)
            accept, leftover = self._rule(
                self.target.rows[context], self.draft.rows[context], candidates, self.drafting
            )
            kept = rng.random(accept.shape) < accept
            goes_on, first = kept.any(axis=1), kept.argmax(axis=1)
            closing = draw_rows(leftover, rng)
            row = np.arange(len(walking))
            made.tokens[walking, level] = np.where(goes_on, candidates[row, first], closing)
            stopped = walking[~goes_on]
            made.accepted[stopped] = level
            made.state[stopped] = self.target.advance(context, closing)[~goes_on]
            at, walking = children[row, first][goes_on], walking[goes_on]
        return made


class DynamicTreeStep:
    """`step(state, rng)` where each context has its own settled tree, as `tree.dynamic_tree` gives it."""

    __slots__ = ("draft", "target", "trees")

    def __init__(self, target: Markov, draft: Markov, trees: list[DraftedTree]) -> None:
        self.target, self.draft, self.trees = target, draft, trees

    def __call__(self, state: IntArray, rng: Generator) -> Steps:
        widest = max(drafted.tree.nodes for drafted in self.trees) - 1
        deepest = max(drafted.tree.depth for drafted in self.trees)
        made = Steps.empty(len(state), widest, deepest + 1)
        made.drafted[:], made.tokens[:] = NO_TOKEN, NO_TOKEN
        for context in np.unique(state):
            mine = np.flatnonzero(state == context)
            drafted = self.trees[int(context)]
            steps = self._one_context(drafted, int(context), len(mine), rng)
            made.drafted[mine, : steps.drafted.shape[1]] = steps.drafted
            made.tokens[mine, : steps.tokens.shape[1]] = steps.tokens
            made.accepted[mine], made.state[mine] = steps.accepted, steps.state
        return made

    def _one_context(self, drafted: DraftedTree, context: int, batch: int, rng: Generator) -> Steps:
        states = [context]
        for node, parent in enumerate(drafted.tree.parents[1:], start=1):
            states.append(int(self.target.advance(states[parent], drafted.tokens[node])))
        tokens = np.repeat(drafted.tokens[:, None], batch, axis=1)
        walker = TreeStep(self.target, self.draft, drafted.tree, "top-k")
        return walker.walk(np.repeat(np.array(states)[:, None], batch, axis=1), tokens, rng)

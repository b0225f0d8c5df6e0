"""Exact laws of a tree step: which node is kept how often, what a step emits; no sampling."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tuner.theory.exact import StepLaw, prepend
from tuner.theory.markov import Markov
from tuner.theory.rule import FloatArray
from tuner.theory.siblings import Drafting, SiblingRule, ordered_draws, sibling_stages
from tuner.theory.tree import DraftedTree, Tree


@dataclass(frozen=True, slots=True, eq=False)
class NodeLaw:
    """`kept[i, s, token]`: child i is the one kept, and holds `token`; `closing[s, token]`: no child is kept."""

    kept: FloatArray
    closing: FloatArray


def node_law(target: Markov, draft: Markov, k: int, drafting: Drafting, rule: SiblingRule = sibling_stages) -> NodeLaw:
    """What happens at a node with k children in each context, summed over every draw of the children."""
    states, vocab = target.rows.shape
    if k == 0:
        return NodeLaw(np.zeros((0, states, vocab)), target.rows)
    tokens, weight = ordered_draws(draft.rows, k, drafting)
    draws = len(tokens)
    q = np.broadcast_to(target.rows, (draws, states, vocab)).reshape(-1, vocab)
    p = np.broadcast_to(draft.rows, (draws, states, vocab)).reshape(-1, vocab)
    accept, leftover = rule(q, p, tokens.reshape(-1, k), drafting)
    accept, leftover = accept.reshape(draws, states, k), leftover.reshape(draws, states, vocab)
    kept, reaches = np.zeros((k, states, vocab)), weight
    for i in range(k):
        np.add.at(kept[i], (np.arange(states)[None, :], tokens[:, :, i]), reaches * accept[:, :, i])
        reaches = reaches * (1.0 - accept[:, :, i])
    return NodeLaw(kept, np.asarray((reaches[:, :, None] * leftover).sum(axis=0)))


def node_laws(
    target: Markov, draft: Markov, tree: Tree, drafting: Drafting, rule: SiblingRule = sibling_stages
) -> dict[int, NodeLaw]:
    """One law for each number of children that occurs in the tree."""
    return {k: node_law(target, draft, k, drafting, rule) for k in {len(children) for children in tree.children}}


def node_acceptance(target: Markov, draft: Markov, tree: Tree, start: FloatArray, drafting: Drafting) -> FloatArray:
    """(nodes,): probability that each node is kept, from the distribution `start` over contexts; the root is 1.

    Their sum is the mean number of tokens per call: a kept node is an emitted token, and the root stands for
    the closing one.
    """
    laws, successors = node_laws(target, draft, tree, drafting), target.successors()
    reached = np.zeros((tree.nodes, target.states))
    reached[0] = start
    for node, children in enumerate(tree.children):
        for i, child in enumerate(children):
            arriving = reached[node][:, None] * laws[len(children)].kept[i]
            np.add.at(reached[child], successors, arriving)
    return np.asarray(reached.sum(axis=1))


def tree_law(
    target: Markov, draft: Markov, tree: Tree, drafting: Drafting, rule: SiblingRule = sibling_stages
) -> StepLaw:
    """The law of one step, built from the leaves back; `exact.written_law` continues it over many steps."""
    laws, successors = node_laws(target, draft, tree, drafting, rule), target.successors()
    below: dict[int, StepLaw] = {}
    for node in reversed(range(tree.nodes)):
        children = tree.children[node]
        local = laws[len(children)]
        law = _closing_only(target, local.closing)
        for i, child in enumerate(children):
            law = _sum(law, [_nothing(target)] + [prepend(local.kept[i], successors, part) for part in below[child]])
        below[node] = law
    return below[0]


def dynamic_law(target: Markov, draft: Markov, trees: list[DraftedTree]) -> StepLaw:
    """The law of one step with `trees[s]` drafted in context s: settled tokens, so each stage keeps by r(token)."""
    law: StepLaw = [_nothing(target)]
    for state, drafted in enumerate(trees):
        mine = _settled_law(target, draft, drafted, 0, state)
        law = _sum(law, [np.where((np.arange(target.states) == state)[:, None, None], part, 0.0) for part in mine])
    return law


def _settled_law(target: Markov, draft: Markov, drafted: DraftedTree, node: int, state: int) -> StepLaw:
    """The law below `node` reached in context `state`; only the row of that context is filled."""
    children = drafted.tree.children[node]
    tokens = drafted.tokens[list(children)][None, :]
    accept, leftover = sibling_stages(target.rows[[state]], draft.rows[[state]], tokens, "top-k")
    closing = np.zeros(target.rows.shape)
    reaches = np.concatenate([[1.0], np.cumprod(1.0 - accept[0])])
    closing[state] = reaches[-1] * leftover[0]
    law = _closing_only(target, closing)
    for i, child in enumerate(children):
        token = int(tokens[0, i])
        weight = np.zeros(target.rows.shape)
        weight[state, token] = reaches[i] * accept[0, i]
        rest = _settled_law(target, draft, drafted, child, int(target.advance(state, token)))
        law = _sum(law, [_nothing(target)] + [prepend(weight, target.successors(), part) for part in rest])
    return law


def dynamic_tokens_per_call(target: Markov, trees: list[DraftedTree], start: FloatArray) -> float:
    """1 + the target's probability of every kept node's path: text written by q passes a settled node that often."""
    total = 0.0
    for state, drafted in enumerate(trees):
        value, context = [1.0], [state]
        for node, parent in enumerate(drafted.tree.parents[1:], start=1):
            token = int(drafted.tokens[node])
            value.append(value[parent] * float(target.rows[context[parent], token]))
            context.append(int(target.advance(context[parent], token)))
        total += float(start[state]) * sum(value)
    return total


def _nothing(target: Markov) -> FloatArray:
    return np.zeros((target.states, 1, target.states))


def _closing_only(target: Markov, closing: FloatArray) -> StepLaw:
    return [_nothing(target), closing[:, :, None] * np.eye(target.states)[target.successors()]]


def _sum(first: StepLaw, second: StepLaw) -> StepLaw:
    longer, shorter = (first, second) if len(first) >= len(second) else (second, first)
    return [part + shorter[e] if e < len(shorter) else part for e, part in enumerate(longer)]

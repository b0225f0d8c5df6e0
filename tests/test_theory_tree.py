"""Trees: shape, mask, the sibling rule proved lossless by enumeration, exact figures, dynamic trees, the sampler."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from theory_support import counts_and_law

from tuner.errors import UserError
from tuner.theory.broken import broken_siblings
from tuner.theory.chain import generate, lossless
from tuner.theory.chi2 import goodness_of_fit
from tuner.theory.exact import chain_law, tokens_per_step, written_law
from tuner.theory.markov import Markov, draft_with_alpha, joint, random_target, stationary
from tuner.theory.siblings import Drafting, draft_siblings, ordered_draws, proposal, sibling_stages
from tuner.theory.speedup import tokens_per_call
from tuner.theory.tree import Tree, chain, dynamic_tree, from_branching
from tuner.theory.tree_exact import (
    dynamic_law,
    dynamic_tokens_per_call,
    node_acceptance,
    node_law,
    tree_law,
)
from tuner.theory.tree_step import DynamicTreeStep, TreeStep
from tuner.theory.tree_study import study_tree
from tuner.theory.verify import count_texts

BOTH: tuple[Drafting, ...] = ("sampled", "top-k")


def whole_weights(vocab: int, order: int, seed: int, most: int) -> Markov:
    """Rows of small whole weights with zeros among them, so that supports differ and may be disjoint."""
    rng = np.random.default_rng(seed)
    weights = rng.integers(0, most, (vocab**order, vocab)).astype(float)
    weights[np.arange(len(weights)), rng.integers(0, vocab, len(weights))] += 1.0
    return Markov(weights / weights.sum(axis=1, keepdims=True), order)


@st.composite
def trees(draw: st.DrawFn, widest: int) -> Tree:
    """Ragged trees up to depth 3 and 9 nodes, no node with more than `widest` children."""
    parents, depths, children = [-1], [0], [0]
    for _ in range(draw(st.integers(1, 8))):
        open_nodes = [i for i in range(len(parents)) if depths[i] < 3 and children[i] < widest]
        if not open_nodes:
            break
        parent = draw(st.sampled_from(open_nodes))
        children[parent] += 1
        parents.append(parent)
        depths.append(depths[parent] + 1)
        children.append(0)
    return Tree(tuple(parents))


# Shape


def test_the_shape_of_2_2_2() -> None:
    tree = from_branching([2, 2, 2])
    assert tree.nodes == 15
    assert tree.parents == (-1, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6)
    assert tree.positions == (0, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3)
    assert tree.leaves == (7, 8, 9, 10, 11, 12, 13, 14)
    assert tree.path(10) == (0, 1, 4, 10)
    assert tree.depth == 3


def test_the_mask_of_a_small_tree() -> None:
    # 0 the root; 1 and 2 its children; 3 below 1
    tree = Tree((-1, 0, 0, 1))
    assert tree.attention_mask().astype(int).tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 1]]
    assert tree.child_table().tolist() == [[1, 2], [3, -1], [-1, -1], [-1, -1]]


def test_the_mask_of_a_chain_is_causal() -> None:
    assert (chain(5).attention_mask() == np.tril(np.ones((6, 6), dtype=bool))).all()


@settings(deadline=None)
@given(trees(widest=4))
def test_a_node_sees_its_path_and_nothing_else(tree: Tree) -> None:
    mask = tree.attention_mask()
    for node in range(tree.nodes):
        assert tuple(np.flatnonzero(mask[node])) == tree.path(node)
        assert mask[node].sum() == tree.positions[node] + 1


# The rule at one node


def test_the_sibling_rule_by_hand() -> None:
    """q = (.5, .3, .2), p = (.2, .5, .3), siblings 1 then 2.

    Stage 1: keep 1 with .3/.5 = .6; residual (.3, 0, 0)/.3 = (1, 0, 0). Stage 2: the draft without 1 is (.4, 0, .6);
    keep 2 with 0; the residual of (1, 0, 0) against (.4, 0, .6) is again (1, 0, 0).
    """
    q, p = np.array([[0.5, 0.3, 0.2]]), np.array([[0.2, 0.5, 0.3]])
    accept, leftover = sibling_stages(q, p, np.array([[1, 2]]), "sampled")
    assert accept[0].tolist() == pytest.approx([0.6, 0.0])
    assert leftover[0].tolist() == pytest.approx([1.0, 0.0, 0.0])
    # Top-k: a sibling without chance is kept with what the residual gives it: .3, then .2/.7; and is then struck out.
    accept, leftover = sibling_stages(q, p, np.array([[1, 2]]), "top-k")
    assert accept[0].tolist() == pytest.approx([0.3, 0.2 / 0.7])
    assert leftover[0].tolist() == pytest.approx([1.0, 0.0, 0.0])


def test_an_absent_sibling_changes_nothing() -> None:
    q, p = np.array([[0.5, 0.3, 0.2]]), np.array([[0.2, 0.5, 0.3]])
    with_gap = sibling_stages(q, p, np.array([[1, -1]]), "sampled")
    without = sibling_stages(q, p, np.array([[1]]), "sampled")
    assert with_gap[0][0].tolist() == [without[0][0, 0], 0.0]
    assert with_gap[1].tolist() == without[1].tolist()
    # Nor does one before it: token 0 was not drawn and stays in the draft's law for the next.
    before = sibling_stages(q, p, np.array([[-1, 1]]), "sampled")
    assert before[0][0].tolist() == [0.0, without[0][0, 0]]
    assert before[1].tolist() == without[1].tolist()


def test_a_draft_that_runs_out_of_tokens_goes_on_evenly() -> None:
    law = proposal(np.array([[1.0, 0.0, 0.0]]), np.array([[True, False, False]]))
    assert law.tolist() == [[0.0, 0.5, 0.5]]


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_ordered_draws_are_a_distribution(k: int) -> None:
    rows = np.array([[0.5, 0.3, 0.2, 0.0], [1.0, 0.0, 0.0, 0.0]])
    tokens, weight = ordered_draws(rows, k, "sampled")
    assert weight.sum(axis=0).tolist() == pytest.approx([1.0, 1.0])
    assert all(len(set(draw)) == k for draw in tokens[:, 0].tolist())


@pytest.mark.parametrize("drafting", BOTH)
@settings(deadline=None, max_examples=60)
@given(vocab=st.integers(1, 4), k=st.integers(0, 4), seed=st.integers(0, 10_000))
def test_a_node_emits_exactly_q(drafting: Drafting, vocab: int, k: int, seed: int) -> None:
    """Kept children and the closing token together have the law q, over every draw of the children."""
    target, draft = (whole_weights(vocab, 1, seed + i, 5) for i in (0, 1))
    law = node_law(target, draft, min(k, vocab), drafting)
    assert law.kept.sum(axis=0) + law.closing == pytest.approx(target.rows, abs=1e-12)


# Whole trees, by enumeration


@pytest.mark.parametrize("drafting", BOTH)
@settings(deadline=None, max_examples=40)
@given(data=st.data(), vocab=st.integers(2, 4), order=st.integers(0, 2), seed=st.integers(0, 10_000))
def test_a_tree_writes_exactly_the_targets_text(
    drafting: Drafting, data: st.DataObject, vocab: int, order: int, seed: int
) -> None:
    tree = data.draw(trees(widest=vocab))
    target, draft = (whole_weights(vocab, order, seed + i, 6) for i in (0, 1))
    assert written_law(tree_law(target, draft, tree, drafting), 4) == pytest.approx(joint(target, 4), abs=1e-12)


@pytest.mark.parametrize("drafting", BOTH)
@pytest.mark.parametrize("branching", [[2, 2, 2], [3, 1, 2], [4, 3], [1, 4, 1]])
def test_a_tree_is_lossless_where_every_prefix_is_its_own_context(drafting: Drafting, branching: list[int]) -> None:
    target, draft = random_target(4, 3, seed=1), random_target(4, 3, seed=2)
    law = tree_law(target, draft, from_branching(branching), drafting)
    assert written_law(law, 4) == pytest.approx(joint(target, 4), abs=1e-12)


@settings(deadline=None, max_examples=20)
@given(
    vocab=st.integers(2, 4),
    depth=st.integers(1, 3),
    top_k=st.integers(1, 3),
    nodes=st.integers(2, 9),
    seed=st.integers(0, 9999),
)
def test_dynamic_trees_write_exactly_the_targets_text(
    vocab: int, depth: int, top_k: int, nodes: int, seed: int
) -> None:
    target, draft = (whole_weights(vocab, 1, seed + i, 6) for i in (0, 1))
    chosen = [dynamic_tree(draft, state, depth, top_k, nodes) for state in range(vocab)]
    law = dynamic_law(target, draft, chosen)
    assert written_law(law, 4) == pytest.approx(joint(target, 4), abs=1e-12)
    start = stationary(target)
    assert dynamic_tokens_per_call(target, chosen, start) == pytest.approx(float(start @ tokens_per_step(law)))


@pytest.mark.parametrize("rule", list(broken_siblings()))
def test_every_broken_sibling_rule_writes_another_law(rule: str) -> None:
    target, draft = random_target(4, 1, 5), random_target(4, 1, 6)
    for drafting in BOTH:
        law = written_law(tree_law(target, draft, from_branching([2, 2]), drafting, broken_siblings()[rule]), 2)
        assert np.abs(law - joint(target, 2)).max() > 0.005


@settings(deadline=None, max_examples=30)
@given(n=st.integers(1, 3), vocab=st.integers(2, 4), seed=st.integers(0, 10_000))
def test_a_tree_with_branching_1_is_the_chain(n: int, vocab: int, seed: int) -> None:
    target, draft = (whole_weights(vocab, 1, seed + i, 6) for i in (0, 1))
    ours = tree_law(target, draft, from_branching([1] * n), "sampled")
    theirs = chain_law(lossless(target, draft), n)
    assert len(ours) == len(theirs) == n + 2
    for mine, chains in zip(ours, theirs, strict=True):
        assert mine == pytest.approx(chains, abs=1e-12)


# Figures


def test_figures_of_2_2_2_by_hand_for_one_context() -> None:
    """q = (.6, .4), p = (.5, .5), both tokens drafted: one of two siblings is always kept, so a call yields 4."""
    target, draft = Markov(np.array([[0.6, 0.4]]), 0), Markov(np.array([[0.5, 0.5]]), 0)
    kept = node_acceptance(target, draft, from_branching([2, 2, 2]), np.ones(1), "sampled")
    # First sibling: 0 always, 1 with .4/.5: .5 + .5 * .8 = .9; second: the remaining .1
    assert kept[:7].tolist() == pytest.approx([1.0, 0.9, 0.1, 0.81, 0.09, 0.09, 0.01])
    assert float(kept.sum()) == pytest.approx(4.0)


def test_top_k_keeps_a_node_as_often_as_the_target_passes_it() -> None:
    target, draft = random_target(6, 1, 3), random_target(6, 1, 4)
    start = stationary(target)
    tree = from_branching([2, 1])
    kept = node_acceptance(target, draft, tree, start, "top-k")
    best = np.argsort(-draft.rows, axis=1, kind="stable")
    index = np.arange(6)
    first = target.rows[index, best[:, 0]]
    below_first = first * target.rows[best[:, 0], best[best[:, 0], 0]]
    second = target.rows[index, best[:, 1]]
    below_second = second * target.rows[best[:, 1], best[best[:, 1], 0]]
    expected = [1.0, *(float(start @ value) for value in (first, second, below_first, below_second))]
    assert kept.tolist() == pytest.approx(expected)


@settings(deadline=None, max_examples=25)
@given(data=st.data(), seed=st.integers(0, 1000))
def test_node_acceptance_is_what_the_law_says(data: st.DataObject, seed: int) -> None:
    tree = data.draw(trees(widest=3))
    target, draft = random_target(3, 1, seed), random_target(3, 1, seed + 1)
    start = stationary(target)
    kept = node_acceptance(target, draft, tree, start, "sampled")
    law = tree_law(target, draft, tree, "sampled")
    assert float(kept.sum()) == pytest.approx(float(start @ tokens_per_step(law)))
    assert 1.0 <= float(kept.sum()) <= min(tree.depth + 1, tree.nodes) + 1e-12
    for depth in range(1, tree.depth + 1):
        at_depth = [kept[node] for node in range(tree.nodes) if tree.positions[node] == depth]
        deeper = sum(float(start @ part.sum(axis=(1, 2))) for e, part in enumerate(law) if e > depth)
        assert sum(at_depth) == pytest.approx(deeper)


def test_the_study_of_2_2_2() -> None:
    study = study_tree([2, 2, 2])
    # Chains keep alpha = .8 in every context: (1 - .8^4) / .2 = 2.952 and (1 - .8^15) / .2 = 4.82408
    assert study.chain_equal_calls == pytest.approx(2.952)
    assert study.chain_equal_nodes == pytest.approx(float(tokens_per_call(0.8, 14)))
    assert study.chain_equal_calls < study.tokens_per_call < 4.0 < study.chain_equal_nodes
    # The first child is a chain's: .8; down the first children .8^3
    assert study.node_acceptance[1] == pytest.approx(0.8)
    assert len(study.alpha_per_leaf) == 8
    assert study.alpha_per_leaf[0] == pytest.approx(0.512)
    assert study.alpha_per_leaf[0] == max(study.alpha_per_leaf)
    assert all(0.8 < alpha < 1.0 for alpha in study.alpha_per_depth)
    first, second, third = study.alpha_per_depth
    expected = 1 + first + first * second + first * second * third
    assert study.tokens_per_call == pytest.approx(expected)
    assert study.static_top_k < study.dynamic.tokens_per_call
    assert study.dynamic.nodes == 15
    assert not study.check.test.rejected
    assert all(check.test.rejected for check in study.broken)


def test_a_study_of_a_chain_shaped_tree() -> None:
    study = study_tree([1, 1], alpha=0.7, steps=3000)
    # 1 + .7 + .49
    assert study.tokens_per_call == pytest.approx(2.19)
    assert study.chain_equal_nodes == pytest.approx(2.19)
    assert study.alpha_per_depth == pytest.approx((0.7, 0.7))
    assert study.alpha_per_leaf == pytest.approx((0.49,))
    assert study.broken == ()


# Dynamic trees


def test_a_dynamic_tree_by_hand() -> None:
    """p = (.6, .3, .1) in every context, depth 2, top-k 2: candidates .6, .3, .36, .18, .18, .09; the best 4 stay."""
    draft = Markov(np.array([[0.6, 0.3, 0.1]]), 0)
    chosen = dynamic_tree(draft, 0, depth=2, top_k=2, nodes=5)
    assert chosen.tree.parents == (-1, 0, 0, 1, 1)
    assert chosen.tokens[1:].tolist() == [0, 1, 0, 1]
    smaller = dynamic_tree(draft, 0, depth=2, top_k=2, nodes=3)
    assert smaller.tree.parents == (-1, 0, 1)
    assert smaller.tokens[1:].tolist() == [0, 0]


def test_a_dynamic_tree_has_at_most_k_plus_k_squared_a_layer() -> None:
    draft = random_target(8, 1, 7)
    # k + (d - 1) k^2 = 3 + 2 * 9 = 21 beside the root
    assert dynamic_tree(draft, 0, depth=3, top_k=3, nodes=1000).tree.nodes == 22


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(2, 12))
def test_the_nodes_kept_are_the_most_probable_of_all_candidates(seed: int, depth: int, nodes: int) -> None:
    draft = random_target(4, 1, seed)
    everything, kept = (dynamic_tree(draft, 0, depth, 3, size) for size in (10_000, nodes))

    def probabilities(drafted: object) -> list[float]:
        values, states = [1.0], [0]
        tree, tokens = drafted.tree, drafted.tokens  # type: ignore[attr-defined]
        for node, parent in enumerate(tree.parents[1:], start=1):
            values.append(values[parent] * float(draft.rows[states[parent], tokens[node]]))
            states.append(int(draft.advance(states[parent], tokens[node])))
        return values

    expected = sorted(probabilities(everything), reverse=True)[:nodes]
    assert sorted(probabilities(kept), reverse=True) == pytest.approx(expected)


# The sampler


@pytest.mark.parametrize("drafting", BOTH)
def test_the_tree_sampler_follows_the_enumerated_law(drafting: Drafting) -> None:
    """How many tokens, which, and the context left behind, for a ragged tree."""
    target, draft = random_target(3, 1, 8), random_target(3, 1, 9)
    tree = Tree((-1, 0, 0, 0, 1, 1, 2, 4))
    made = TreeStep(target, draft, tree, drafting)(np.zeros(40_000, dtype=np.int64), np.random.default_rng(0))
    counts, law = counts_and_law(made, tree_law(target, draft, tree, drafting), [0], target.vocab)
    assert goodness_of_fit(counts, law).p_value > 1e-3
    assert (made.emitted == made.accepted + 1).all()


def test_the_dynamic_sampler_writes_the_targets_text() -> None:
    target, draft = random_target(4, 1, 8), random_target(4, 1, 9)
    chosen = [dynamic_tree(draft, state, 3, 2, 6 + state) for state in range(4)]
    step = DynamicTreeStep(target, draft, chosen)
    text = generate(step, np.zeros(30_000, dtype=np.int64), 4, np.random.default_rng(1))
    assert goodness_of_fit(count_texts(text, 4), joint(target, 4)[0]).p_value > 1e-3
    first = step(np.zeros(30_000, dtype=np.int64), np.random.default_rng(2))
    expected = float(tokens_per_step(dynamic_law(target, draft, chosen))[0])
    assert float(first.emitted.mean()) == pytest.approx(expected, abs=0.03)


def test_siblings_differ_and_top_k_is_by_probability() -> None:
    rows = np.tile(np.array([[0.5, 0.3, 0.2]]), (1000, 1))
    drawn = draft_siblings(rows, 2, "sampled", np.random.default_rng(0))
    assert (drawn[:, 0] != drawn[:, 1]).all()
    assert draft_siblings(rows[:1], 2, "top-k", np.random.default_rng(0)).tolist() == [[0, 1]]


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: from_branching([2, 0, 2]), "at least 1 child at every depth"),
        (lambda: from_branching([]), "at least 1 child at every depth"),
        (lambda: from_branching([10, 10, 10, 10]), "over 4096 nodes"),
        (lambda: Tree((0,)), "-1 for the root first"),
        (lambda: Tree((-1, 2, 0)), "parents before children"),
        (lambda: dynamic_tree(random_target(4, 1, 0), 0, 0, 2, 4), "depth and top-k of at least 1"),
        (lambda: study_tree([9]), "9 different children over a vocabulary of 8"),
        (lambda: study_tree([8], vocab=12), "too many to enumerate"),
        (lambda: study_tree([2], steps=0), "steps is 0"),
        (lambda: study_tree([2], alpha=1.5), "alpha is 1.5"),
    ],
)
def test_what_is_no_tree_is_refused(call: object, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        call()  # type: ignore[operator]


def test_a_good_draft_with_alpha_1_keeps_every_first_child() -> None:
    target = random_target(5, 1, 2)
    kept = node_acceptance(
        target, draft_with_alpha(target, 1.0, 2), from_branching([2, 2]), stationary(target), "sampled"
    )
    assert kept.tolist() == pytest.approx([1, 1, 0, 1, 0, 0, 0])

"""The chain: proofs by exact enumeration, and the sampler held against the enumerated law."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from theory_support import counts_and_law

from tuner.errors import UserError
from tuner.theory.broken import broken_chains
from tuner.theory.chain import ChainRules, ChainStep, generate, lossless, sample_directly, without_gap
from tuner.theory.chi2 import goodness_of_fit
from tuner.theory.draws import AliasTable, draw_rows, draw_without_replacement, most_likely
from tuner.theory.exact import chain_law, tokens_per_step, written_law
from tuner.theory.markov import Markov, draft_with_alpha, joint, random_target, stationary, tilted
from tuner.theory.rule import alpha_of
from tuner.theory.speedup import tokens_per_call
from tuner.theory.trace import trace
from tuner.theory.verify import count_texts, toy_pair


@st.composite
def model_pairs(draw: st.DrawFn) -> tuple[Markov, Markov]:
    """Vocabulary 2 to 4, contexts of 0 to 2 tokens, whole weights with zeros: supports may be disjoint."""
    vocab, order = draw(st.integers(2, 4)), draw(st.integers(0, 2))
    size = vocab**order * vocab
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))

    def model() -> Markov:
        weights = rng.integers(0, draw(st.integers(2, 9)), size).reshape(-1, vocab).astype(float)
        weights[np.arange(len(weights)), rng.integers(0, vocab, len(weights))] += 1.0
        return Markov(weights / weights.sum(axis=1, keepdims=True), order)

    return model(), model()


@settings(deadline=None, max_examples=60)
@given(model_pairs(), st.integers(1, 3), st.integers(1, 5))
def test_a_chain_writes_exactly_the_targets_text(pair: tuple[Markov, Markov], n: int, k: int) -> None:
    """No sampling: the law of the first k tokens that repeated steps write equals the target's own, to rounding."""
    target, draft = pair
    k = min(k, 4)
    assert written_law(chain_law(lossless(target, draft), n), k) == pytest.approx(joint(target, k), abs=1e-12)


@pytest.mark.parametrize("vocab", [2, 3, 4])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_chain_is_lossless_where_every_prefix_is_its_own_context(vocab: int, n: int) -> None:
    target, draft = random_target(vocab, 3, seed=vocab), random_target(vocab, 3, seed=10 + n)
    assert written_law(chain_law(lossless(target, draft), n), 4) == pytest.approx(joint(target, 4), abs=1e-12)


def test_the_enumeration_itself_by_hand() -> None:
    """Two tokens, no context, N = 1, q = (.3, .7), p = (.6, .4): kept .6 * .5 + .4 * 1 = .7, so E = 1.7."""
    target, draft = Markov(np.array([[0.3, 0.7]]), 0), Markov(np.array([[0.6, 0.4]]), 0)
    law = chain_law(lossless(target, draft), 1)
    # One token: the draft's 0 is rejected with .6 * .5 = .3, and the residual is all on 1.
    assert law[1][0, :, 0].tolist() == pytest.approx([0.0, 0.3])
    # Two tokens: 0 kept (.3) or 1 kept (.4), then the bonus from q.
    assert law[2][0, :, 0].tolist() == pytest.approx([0.3 * 0.3, 0.3 * 0.7, 0.4 * 0.3, 0.4 * 0.7])
    assert float(tokens_per_step(law)[0]) == pytest.approx(1.7)


@pytest.mark.parametrize("name", list(broken_chains(*toy_pair())))
def test_every_broken_variant_writes_another_law(name: str) -> None:
    target, draft = toy_pair()
    law = written_law(chain_law(broken_chains(target, draft)[name], 3), 4)[0]
    assert law.sum() == pytest.approx(1.0)
    assert np.abs(law - joint(target, 4)[0]).sum() / 2 > 0.1


def test_not_drawing_a_bonus_is_slower_and_still_lossless() -> None:
    """The other reading of "drop the bonus": N accepted tokens end the step and the next one drafts on from there."""
    target, draft = toy_pair()
    law = chain_law(lossless(target, draft), 2)
    states = target.states
    silent = [part.copy() for part in law]
    # A step that kept both: stop before the bonus, in the state the two tokens lead to.
    both = law[3].sum(axis=2).reshape(states, 16, 4).sum(axis=2)
    after = target.advance(target.advance(np.arange(states)[:, None], np.arange(16) // 4), np.arange(16) % 4)
    silent[2] = silent[2] + both[:, :, None] * np.eye(states)[after]
    silent[3] = np.zeros_like(law[3])
    assert written_law(silent, 4) == pytest.approx(joint(target, 4), abs=1e-12)
    assert (tokens_per_step(silent) < tokens_per_step(law)).all()


@pytest.mark.parametrize("name", ["lossless", *broken_chains(*toy_pair())])
@pytest.mark.parametrize("n", [1, 3])
def test_the_sampler_follows_the_enumerated_law(name: str, n: int) -> None:
    """Tokens, their number and the context left behind, all in one test, from every starting context."""
    target, draft = toy_pair()
    rules = {"lossless": lossless(target, draft), **broken_chains(target, draft)}[name]
    starts = list(range(target.states))
    steps = ChainStep(rules, n)(np.repeat(starts, 5000), np.random.default_rng(5))
    counts, law = counts_and_law(steps, chain_law(rules, n), starts, target.vocab)
    assert goodness_of_fit(counts, law).p_value > 1e-3


def test_a_step_reports_what_it_did() -> None:
    target, draft = toy_pair()
    steps = ChainStep(lossless(target, draft), 4)(np.zeros(2000, dtype=np.int64), np.random.default_rng(1))
    assert steps.drafted.shape == (2000, 4)
    assert steps.tokens.shape == (2000, 5)
    assert set(np.unique(steps.accepted)) == {0, 1, 2, 3, 4}
    assert (steps.emitted == steps.accepted + 1).all()
    for i in range(2000):
        kept = int(steps.accepted[i])
        assert (steps.tokens[i, :kept] == steps.drafted[i, :kept]).all()
        assert (steps.tokens[i, kept + 1 :] == -1).all()
        if kept < 4:
            # The residual has no mass on a token the draft overrates, so a correction never repeats it.
            assert steps.tokens[i, kept] != steps.drafted[i, kept]


def test_rejection_goes_from_the_left() -> None:
    kept = np.array([[True, True, False, True], [True, False, True, True], [False, True, True, True]])
    assert without_gap(kept).sum(axis=0).tolist() == [2, 1, 0, 3]


def test_the_same_seed_gives_the_same_text() -> None:
    step = ChainStep(lossless(*toy_pair()), 3)
    start = np.zeros(100, dtype=np.int64)
    texts = [generate(step, start, 9, np.random.default_rng(seed)) for seed in (4, 4, 5)]
    assert (texts[0] == texts[1]).all()
    assert (texts[0] != texts[2]).any()


def test_generated_text_is_longer_than_one_step_where_it_must_be() -> None:
    step = ChainStep(lossless(*toy_pair()), 2)
    text = generate(step, np.zeros(500, dtype=np.int64), 11, np.random.default_rng(0))
    assert text.shape == (500, 11)
    assert text.min() >= 0


@settings(deadline=None, max_examples=25)
@given(st.floats(0.35, 0.999), st.integers(1, 6), st.integers(0, 50))
def test_equal_alpha_in_every_context_gives_the_iid_formula(alpha: float, n: int, seed: int) -> None:
    """(1 - alpha^(N+1)) / (1 - alpha), also on a contextual model, from every context, by enumeration."""
    target = random_target(3, 1, seed)
    # A tilt can be as poor as the least likely token, or as the one its largest noise stands on.
    assume(float(target.rows.min(axis=1).max()) < alpha - 0.05)
    draft = draft_with_alpha(target, alpha, seed)
    exact = tokens_per_step(chain_law(lossless(target, draft), n))
    assert exact == pytest.approx(np.full(3, float(tokens_per_call(alpha, n))), rel=1e-9)


def test_a_draft_with_alpha_has_it_in_every_context() -> None:
    target = random_target(8, 1, 1)
    draft = draft_with_alpha(target, 0.8, 1)
    assert alpha_of(target.rows, draft.rows) == pytest.approx(np.full(8, 0.8), abs=1e-12)
    assert draft_with_alpha(target, 1.0, 1).rows == pytest.approx(target.rows)


def test_models_by_hand() -> None:
    model = Markov(np.array([[0.9, 0.1], [0.5, 0.5]]), 1)
    # From state 0: 00 = .9 * .9, 01 = .9 * .1, 10 = .1 * .5, 11 = .1 * .5
    assert joint(model, 2)[0].tolist() == pytest.approx([0.81, 0.09, 0.05, 0.05])
    # pi0 * .1 = pi1 * .5, so pi = (5/6, 1/6)
    assert stationary(model).tolist() == pytest.approx([5 / 6, 1 / 6])
    assert model.advance([0, 1], [1, 0]).tolist() == [1, 0]
    assert Markov(np.full((4, 2), 0.5), 2).advance(2, 1) == 1  # context (1, 0) then 1: (0, 1)
    assert tilted(model, 0.0, 3).rows == pytest.approx(model.rows)


def test_direct_samples_follow_the_joint_law() -> None:
    target, _ = toy_pair()
    text = sample_directly(target, np.zeros(20_000, dtype=np.int64), 3, np.random.default_rng(2))
    assert goodness_of_fit(count_texts(text, 4), joint(target, 3)[0]).p_value > 1e-3


def test_texts_are_counted_in_base_vocab() -> None:
    # 0 1 = 1, 1 0 = 3, 2 2 = 8 in base 3
    assert count_texts(np.array([[0, 1], [1, 0], [2, 2], [2, 2]]), 3).tolist() == [0, 1, 0, 1, 0, 0, 0, 0, 2]


def test_draws_follow_their_rows_and_never_take_the_impossible() -> None:
    rows = np.array([[0.5, 0.0, 0.3, 0.2], [0.4, 0.6, 0.0, 0.0], [0.05, 0.05, 0.1, 0.8]])
    rng = np.random.default_rng(3)
    index = np.repeat(np.arange(3), 20_000)
    for drawn in (AliasTable(rows).draw(index, rng), draw_rows(rows[index], rng)):
        for row in range(3):
            assert goodness_of_fit(np.bincount(drawn[index == row], minlength=4), rows[row]).p_value > 1e-3


def test_draws_without_replacement_by_hand() -> None:
    """First 0 then 1 at p = (.5, .3, .2): .5 * .3 / .5 = .3; and so on for all six orders."""
    row = np.array([0.5, 0.3, 0.2])
    drawn = draw_without_replacement(np.tile(row, (60_000, 1)), 3, np.random.default_rng(4))
    orders = {(0, 1): 0.3, (0, 2): 0.2, (1, 0): 15 / 70, (1, 2): 6 / 70, (2, 0): 0.125, (2, 1): 0.075}
    counts = [int(((drawn[:, 0] == a) & (drawn[:, 1] == b)).sum()) for a, b in orders]
    assert goodness_of_fit(np.array(counts), np.array(list(orders.values()))).p_value > 1e-3
    assert most_likely(np.array([[0.2, 0.3, 0.3, 0.2]]), 3).tolist() == [[1, 2, 0]]


def test_a_trace_is_one_unbroken_text() -> None:
    steps = trace(n=3, steps=40, seed=2)
    assert {step.closed_by for step in steps} == {"correction", "bonus"}
    for before, after in itertools.pairwise(steps):
        assert after.context == (before.context + before.emitted)[-2:]
        assert before.emitted[: before.accepted] == before.drafted[: before.accepted]
        assert (before.closed_by == "bonus") == (before.accepted == 3)


def _uneven() -> ChainRules:
    return lossless(random_target(3, 1, 0), random_target(4, 1, 0))


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: ChainStep(lossless(*toy_pair()), 0), "n is 0; a step drafts at least 1 token"),
        (_uneven, "differ in vocabulary or order"),
        (lambda: Markov(np.full((3, 2), 0.5), 1), "needs 2 rows, and 3 were given"),
        (lambda: random_target(1, 0, 0), "a vocabulary of 1"),
        (lambda: draft_with_alpha(random_target(4, 1, 0), 0.0, 0), "alpha is 0"),
        (lambda: draft_with_alpha(Markov(np.array([[0.5, 0.5]]), 0), 0.2, 0), "as poor as alpha 0.2"),
        (lambda: trace(2, 0, 0), "steps is 0"),
    ],
)
def test_what_cannot_run_is_refused(call: object, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        call()  # type: ignore[operator]

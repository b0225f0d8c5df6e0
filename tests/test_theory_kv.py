"""KV rollback: the worked batch, and invariants over any history of batches, chains and trees, under both policies."""

from __future__ import annotations

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tuner.errors import UserError
from tuner.theory.kv import NO_CONTEXT, Entry, PagedCache, context_after
from tuner.theory.rollback import (
    Pass,
    Policy,
    ScratchCommit,
    Settled,
    Truncate,
    demonstrate,
    verify_pass,
)
from tuner.theory.tree import Tree, chain, from_branching


def text_of(tokens: list[int]) -> tuple[Entry, ...]:
    """What plain decoding would have cached for these tokens: the oracle."""
    entries, context = [], NO_CONTEXT
    for i, token in enumerate(tokens):
        entries.append(Entry(token, i, context))
        context = context_after(entries[-1])
    return tuple(entries)


def test_a_accepts_all_and_b_rejects_after_two() -> None:
    """5 drafted, 10 entries before: the pass writes 6 (the pending token's and 5); A keeps 6 of them, B 3."""
    shown = demonstrate(n=5, accepted=[5, 2], prefix=10, block_size=4)
    assert shown.same_text
    # Blocks of 4: 16 and 13 entries take 4 each. Scratch: 6 entries take 2 more at the peak, and all kept are copied.
    assert shown.scratch_commit == (Settled(16, 6, 0, 6, 4, 6), Settled(13, 6, 3, 3, 4, 6))
    # In place: room for 16 entries, 4 blocks, is the peak, and nothing moves on a chain.
    assert shown.truncate == (Settled(16, 6, 0, 0, 4, 4), Settled(13, 6, 3, 0, 4, 4))


def test_blocks_wholly_beyond_the_length_are_given_back() -> None:
    # 4 + 9 entries reach into a fourth block of 4; after keeping 1 + 1 there are 6 left, in 2 blocks.
    shown = demonstrate(n=8, accepted=[1], prefix=4, block_size=4)
    assert (shown.truncate[0].blocks_at_peak, shown.truncate[0].blocks_held) == (4, 2)


def test_a_tree_keeps_only_its_accepted_path_and_compacts_it() -> None:
    """[2, 2] has 7 nodes; the path 0, 2, 6 of last children moves from slots 2 and 6 to 1 and 2."""
    shown = demonstrate(n=2, accepted=[2, 0], prefix=3, block_size=4, branching=[2, 2])
    assert shown.same_text
    assert shown.truncate == (Settled(6, 7, 4, 2, 2, 3), Settled(4, 7, 6, 0, 1, 3))
    assert [settled.copied for settled in shown.scratch_commit] == [3, 1]


def test_compaction_leaves_the_path_in_order() -> None:
    cache = PagedCache(8, 2)
    cache.admit(0, [7, 8])
    verify_pass(cache, Truncate(), {0: Pass(from_branching([2, 2]), (10, 11, 12, 13, 14, 15, 16), (0, 2, 5))})
    assert cache.visible(0) == text_of([7, 8, 10, 12, 15])


def test_stale_entries_lie_beyond_the_length_and_cannot_be_read() -> None:
    cache = PagedCache(8, 4)
    cache.admit(0, [1, 2])
    verify_pass(cache, Truncate(), {0: Pass(chain(3), (5, 6, 7, 8), (0,))})
    assert cache.visible(0) == text_of([1, 2, 5])
    # The rejected 6 is still in memory, one behind the text.
    assert cache.raw(0, 3).token == 6
    with pytest.raises(UserError, match="index 3 is not its text"):
        cache.read(0, 3)


def test_a_full_cache_refuses_the_batch_and_loses_nothing() -> None:
    for policy in (Truncate(), ScratchCommit()):
        cache = PagedCache(5, 4)
        cache.admit(0, [1, 2, 3])
        cache.admit(1, [4, 5, 6])
        batch = {i: Pass(chain(7), tuple(range(8)), (0, 1)) for i in (0, 1)}
        with pytest.raises(UserError, match="the cache is full"):
            verify_pass(cache, policy, batch)
        assert cache.free_blocks == 3
        assert [cache.visible(i) for i in (0, 1)] == [text_of([1, 2, 3]), text_of([4, 5, 6])]


@settings(deadline=None, max_examples=80)
@given(
    n=st.integers(1, 9),
    shares=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=6),
    prefix=st.integers(0, 40),
    block_size=st.integers(1, 17),
)
def test_the_counts_of_any_batch(n: int, shares: list[float], prefix: int, block_size: int) -> None:
    accepted = [round(share * n) for share in shares]
    shown = demonstrate(n, accepted, prefix, block_size)
    assert shown.same_text
    for policy in (shown.scratch_commit, shown.truncate):
        for kept, settled in zip(accepted, policy, strict=True):
            assert settled.kv_length == prefix + kept + 1
            assert (settled.written, settled.wasted) == (n + 1, n - kept)
            assert settled.blocks_held == -(-(prefix + kept + 1) // block_size)
            assert settled.blocks_at_peak >= settled.blocks_held
    assert all(settled.copied == 0 for settled in shown.truncate)


@st.composite
def passes(draw: st.DrawFn) -> Pass:
    """Any tree up to 8 nodes, a chain among them, any tokens, any path from the root."""
    parents = [-1]
    for _ in range(draw(st.integers(0, 7))):
        parents.append(draw(st.integers(0, len(parents) - 1)))
    tree = Tree(tuple(parents))
    tokens = tuple(draw(st.integers(0, 9)) for _ in parents)
    return Pass(tree, tokens, tree.path(draw(st.integers(0, tree.nodes - 1))))


class Rollbacks(RuleBasedStateMachine):
    """Two caches, one a policy, through the same history, against the texts as plain lists."""

    policies: tuple[Policy, Policy]

    @initialize(block_size=st.integers(1, 5))
    def begin(self, block_size: int) -> None:
        self.policies = self.make_policies()
        self.caches = (PagedCache(40, block_size), PagedCache(40, block_size))
        self.texts: dict[int, list[int]] = {}
        self.admitted = 0

    def make_policies(self) -> tuple[Policy, Policy]:
        return ScratchCommit(), Truncate()

    @rule(tokens=st.lists(st.integers(0, 9), max_size=12))
    def admit(self, tokens: list[int]) -> None:
        needed = self.caches[0].blocks_for(len(tokens))
        if needed > min(cache.free_blocks for cache in self.caches):
            return
        for cache in self.caches:
            cache.admit(self.admitted, tokens)
        self.texts[self.admitted] = list(tokens)
        self.admitted += 1

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def verify(self, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.sampled_from(sorted(self.texts)), min_size=1, max_size=3, unique=True))
        batch = {sequence: data.draw(passes()) for sequence in chosen}
        before = [cache.free_blocks for cache in self.caches]
        refused = []
        for cache, policy in zip(self.caches, self.policies, strict=True):
            try:
                settled = verify_pass(cache, policy, batch)
            except UserError:
                refused.append(cache)
            else:
                for sequence, made in batch.items():
                    assert settled[sequence].written == made.tree.nodes
                    assert settled[sequence].wasted == made.tree.nodes - len(made.path)
                    assert settled[sequence].kv_length == len(self.texts[sequence]) + len(made.path)
        if not refused:
            for sequence, made in batch.items():
                self.texts[sequence] += [made.tokens[node] for node in made.path]
            return
        # A refusal changes nothing; what the other cache went on to hold is taken back by starting it anew.
        for cache, free in zip(self.caches, before, strict=True):
            if cache in refused:
                assert cache.free_blocks == free
        for sequence in list(self.texts):
            for cache in self.caches:
                cache.finish(sequence)
        self.texts.clear()

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(sorted(self.texts)))
        for cache in self.caches:
            cache.finish(sequence)
        del self.texts[sequence]

    @invariant()
    def the_visible_text_is_what_plain_decoding_would_have_cached(self) -> None:
        for sequence, tokens in getattr(self, "texts", {}).items():
            expected = text_of(tokens)
            for cache in self.caches:
                assert cache.visible(sequence) == expected

    @invariant()
    def nothing_is_read_beyond_the_logical_length(self) -> None:
        for sequence, tokens in getattr(self, "texts", {}).items():
            for cache in self.caches:
                assert cache.length(sequence) == len(tokens)
                for index in (-1, len(tokens)):
                    with pytest.raises(UserError):
                        cache.read(sequence, index)

    @invariant()
    def no_block_is_leaked_or_held_without_need(self) -> None:
        for cache in getattr(self, "caches", ()):
            held = sum(cache.held(sequence) for sequence in cache.sequences)
            assert held + cache.free_blocks == cache.blocks
            for sequence in cache.sequences:
                assert cache.held(sequence) == cache.blocks_for(cache.length(sequence))


class ForgetsToRollBack(Truncate):
    """Leaves the logical length behind all that was drafted: stale K/V stays readable."""

    def settle(self, cache: PagedCache, sequence: int, made: Pass) -> Settled:
        settled = super().settle(cache, sequence, made)
        text = cache.length(sequence) - len(made.path)
        cache.reserve(sequence, text + made.tree.nodes)
        cache.set_length(sequence, text + made.tree.nodes)
        return settled


class ForgetsToCompact(Truncate):
    """Moves the length over the first slots, whichever nodes lie there: right for chains, wrong for trees."""

    def settle(self, cache: PagedCache, sequence: int, made: Pass) -> Settled:
        first = Pass(chain(made.tree.nodes - 1), made.tokens, tuple(range(len(made.path)))) if made.path[-1] else made
        return super().settle(cache, sequence, first)


class LeaksScratch(ScratchCommit):
    """Commits, and never frees the scratch."""

    def settle(self, cache: PagedCache, sequence: int, made: Pass) -> Settled:
        cache.take(min(1, cache.free_blocks))
        return super().settle(cache, sequence, made)


Rollbacks.TestCase.settings = settings(deadline=None, max_examples=60, stateful_step_count=20)
TestRollbacks = Rollbacks.TestCase


@pytest.mark.parametrize("broken", [ForgetsToRollBack, ForgetsToCompact, LeaksScratch])
def test_the_invariants_catch_broken_policies(broken: type[Policy]) -> None:
    class Broken(Rollbacks):
        def make_policies(self) -> tuple[Policy, Policy]:
            return ScratchCommit(), broken()

    case = Broken.TestCase
    # Finding the failure is what is tested; shrinking it would take most of the time.
    case.settings = settings(deadline=None, max_examples=200, database=None, derandomize=True, phases=[Phase.generate])
    with pytest.raises(AssertionError):
        case().runTest()


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: demonstrate(0, [0], 10, 16), "n is 0"),
        (lambda: demonstrate(5, [6], 10, 16), "accepted 6 is not between 0 and 5"),
        (lambda: demonstrate(5, [-1], 10, 16), "accepted -1 is not between 0 and 5"),
        (lambda: demonstrate(5, [], 10, 16), "accepted is empty"),
        (lambda: demonstrate(5, [3], 10, 16, [2, 2]), "accepted 3 is not between 0 and 2"),
        (lambda: demonstrate(5, [3], -1, 16), "prefix is -1"),
        (lambda: demonstrate(5, [3], 10, 0), "at least 1 block"),
        (lambda: Pass(chain(2), (1, 2), (0,)), "3 nodes and 2 tokens"),
        (lambda: Pass(chain(2), (1, 2, 3), (0, 2)), "must lead from the root"),
        (lambda: Pass(chain(2), (1, 2, 3), ()), "must lead from the root"),
    ],
)
def test_bad_input_is_refused(call: object, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        call()  # type: ignore[operator]


def test_the_same_sequence_is_not_admitted_twice() -> None:
    cache = PagedCache(4, 4)
    cache.admit(0, [1])
    with pytest.raises(UserError, match="sequence 0 is in the cache already"):
        cache.admit(0, [2])
    with pytest.raises(UserError, match="holds no 9 entries"):
        cache.set_length(0, 9)

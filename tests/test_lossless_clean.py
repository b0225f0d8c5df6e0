"""200 clean runs, simulated: rounding alone parts greedy answers, and samples are of one law. Hardly any is accused."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from tuner.measure.lossless import Verified
from tuner.measure.lossless_greedy import TIE_16_BIT, GreedyAnswer, GreedyResult, compare_greedy
from tuner.measure.lossless_levels import ALPHA
from tuner.measure.lossless_sampled import LOOKS, SampledResult, compare_sampled

RUNS, PROMPTS, TOKENS = 200, 24, 12
#: Standard deviation of the rounding of a difference of logits, nats: bfloat16's in the middle of a long sum.
ROUNDING = 0.1
VOCAB, K, OPENERS, EACH = 8, 3, 4, 128
FEW = 10  # 5 % of 200
Marks = NDArray[np.bool_]


def greedy_runs(seed: int, *, told: bool = True, spec_rounding: float = ROUNDING) -> Iterator[list[list[GreedyAnswer]]]:
    """Off, off again and speculation: token 0, and 1 wherever rounding turns it and the next likeliest round."""
    rng = np.random.default_rng(seed)
    shape = (RUNS, PROMPTS, TOKENS)
    gaps = rng.exponential(3.0, shape)
    again, spec = (gaps + rng.normal(0, noise, shape) < 0 for noise in (ROUNDING, spec_rounding))
    for run in range(RUNS):
        scores = [tuple({0: 0.0, 1: -gap} for gap in row) if told else () for row in gaps[run].tolist()]
        off = [GreedyAnswer(f"p{i}", (0,) * TOKENS, False, row) for i, row in enumerate(scores)]
        yield [off, *([_answer(i, row) for i, row in enumerate(marks[run])] for marks in (again, spec))]


def _answer(prompt: int, turned: Marks) -> GreedyAnswer:
    return GreedyAnswer(f"p{prompt}", tuple(turned.astype(int).tolist()))


def greedily(seed: int, alpha: float, **how: bool) -> list[GreedyResult]:
    return [compare_greedy(off, again, spec, TIE_16_BIT, alpha) for off, again, spec in greedy_runs(seed, **how)]


@pytest.mark.parametrize(
    ("told", "alpha", "most"),
    # At 0.2 no more than 40 are expected, with a standard deviation of sqrt(200 * 0.2 * 0.8) = 5.7: 3 of them above.
    [(True, ALPHA, FEW), (False, ALPHA, FEW), (True, 0.2, 57), (False, 0.2, 57)],
)
def test_two_hundred_clean_greedy_runs_give_few_false_alarms(told: bool, alpha: float, most: int) -> None:
    results = greedily(11, alpha, told=told)
    parted = np.mean([len(r.divergences) for r in results])
    assert 0.1 * PROMPTS < parted < 0.5 * PROMPTS  # there is something to be accused of
    assert sum(r.failed for r in results) < most
    assert sum(r.restless for r in results) < most
    assert sum(r.void for r in results) < FEW
    if told:  # every gap is a tie, so that none is accused whatever the rates are
        assert sum(r.failed for r in results) == 0
    elif alpha > ALPHA:  # and the rates are no rubber stamp
        assert sum(r.failed for r in results) > 0


def test_greedy_runs_of_ten_times_the_rounding_are_not_clean() -> None:
    """The counterpart: the same test sees what is not rounding any more."""
    loose = [compare_greedy(*run, TIE_16_BIT) for run in greedy_runs(12, spec_rounding=10 * ROUNDING)]
    assert np.mean([r.failed for r in loose]) > 0.95


def sample_runs(seed: int) -> Iterator[list[dict[str, list[tuple[int, ...]]]]]:
    """Two halves of off and one of speculation, twice as many: by opener, K tokens of one Markov chain each."""
    rng = np.random.default_rng(seed)
    laws = rng.dirichlet(np.full(VOCAB, 0.3), size=(OPENERS, VOCAB)).cumsum(axis=2)
    last = np.zeros((RUNS, OPENERS, 4 * EACH), dtype=int)
    columns = []
    for _ in range(K):
        rows = laws[np.arange(OPENERS)[None, :, None], last]
        last = (rng.random(last.shape)[..., None] > rows).sum(axis=3).clip(0, VOCAB - 1)
        columns.append(last)
    texts = np.stack(columns, axis=3).tolist()
    for run in texts:
        named = [(f"opener {i}", [tuple(text) for text in rows]) for i, rows in enumerate(run)]
        cuts = ((0, EACH), (EACH, 2 * EACH), (2 * EACH, 4 * EACH))
        yield [{name: rows[begin:end] for name, rows in named} for begin, end in cuts]


def sampled(halves: list[dict[str, list[tuple[int, ...]]]], alpha: float) -> tuple[SampledResult, SampledResult]:
    """(speculation by growing looks until one fails, off's own halves), as a run does it."""
    first, second, spec = halves
    off = {name: first[name] + second[name] for name in first}
    for look, share in enumerate(LOOKS):
        seen = {name: rows[: int(len(rows) * share)] for name, rows in spec.items()}
        result = compare_sampled(off, seen, 1.0, K, look, alpha)
        if result.failed:
            break
    return result, compare_sampled(first, second, 1.0, K, alpha=alpha)


def test_two_hundred_clean_runs_are_hardly_ever_accused_by_the_whole_verdict() -> None:
    """Samples, greedy answers without gaps, whose rates decide, and the control, each with its share of the error."""
    alpha = ALPHA / 2  # temperatures 0 and 1 of one setting
    verdicts = []
    for greedy, halves in zip(greedily(13, alpha, told=False), sample_runs(14), strict=True):
        result, control = sampled(halves, alpha)
        verdicts.append(Verified("eagle3 N=3", greedy, (result,), (control,), drafted=500, drafted_greedily=100))
    assert len(verdicts) == RUNS
    assert sum(not one.ok for one in verdicts) < FEW
    assert sum(not one.trusted(1.0) for one in verdicts) < FEW  # and the control hardly ever makes it void
    assert all(one.tested and one.passed is one.ok for one in verdicts)
    assert all(one.sampled[0].df > 0 for one in verdicts)

"""Sampled output against the target's own: are the first k tokens of two servers draws from one law?

A prompt's samples are cut into bins along the tree of their prefixes: a branch that is common enough has bins of its
own, rare ones are pooled. Only pooled counts choose the bins, so under one law whose sample is whose does not matter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tuner.measure.lossless_levels import ALPHA, LARGEST_UNSEEN, SHIFT, caught, levels, power

Texts = Sequence[tuple[int | str, ...]]
#: Expected count of a bin in the smaller sample, at least (Cochran's rule) ...
LEAST_EXPECTED = 5.0
#: ... and its least share of a prompt's samples: every bin more costs power against a shift of all of them.
LEAST_SHARE = 1 / 12
#: The looks at a growing sample, as shares of all of it.
LOOKS = (1 / 8, 1 / 4, 1 / 2, 1.0)


@dataclass(frozen=True, slots=True)
class PromptTest:
    """One prompt's test of homogeneity. `distance`: total variation between the two samples' bins, noise included."""

    prompt: str
    first: int
    second: int
    chi2: float
    df: int
    p_value: float
    distance: float


@dataclass(frozen=True, slots=True)
class SampledResult:
    """All prompts at one temperature, at the last look that was taken.

    `p_all`: the prompts' statistics added up; `p_worst`: the least of the prompts', times their number; `p_pairs`: of
    tokens j and j + 1 alone, added up over prompts, the least over j times their number: it sees late tokens where the
    early ones scatter. `level`: the look's share of the error, a third for each of them; `final_level`: the last
    look's.
    """

    temperature: float
    k: int
    tests: tuple[PromptTest, ...]
    look: int
    looks: int
    level: float
    final_level: float
    p_all: float
    p_worst: float
    p_pairs: float

    @property
    def first(self) -> int:
        return sum(test.first for test in self.tests)

    @property
    def second(self) -> int:
        return sum(test.second for test in self.tests)

    @property
    def df(self) -> int:
        return sum(test.df for test in self.tests)

    @property
    def p_value(self) -> float:
        """Corrected for prompts, positions and the three ways of looking; not for looks, which `level` is for."""
        return min(1.0, 3 * min(self.p_all, self.p_worst, self.p_pairs))

    @property
    def failed(self) -> bool:
        return self.p_value < self.level

    @property
    def worst(self) -> PromptTest | None:
        return min(self.tests, key=lambda test: test.p_value, default=None)

    def power(self, shift: float = SHIFT) -> float:
        """Of the test over all prompts at the last look alone: earlier looks only add to it."""
        return power(shift, self.first, self.second, self.df, self.final_level / 3)

    @property
    def caught(self) -> float | None:
        """The smallest shift that would have been caught with probability 0.9."""
        return caught(self.first, self.second, self.df, self.final_level / 3)

    @property
    def telling(self) -> bool:
        """Whether there were samples enough for equal output to say anything."""
        return self.failed or (self.caught is not None and self.caught <= LARGEST_UNSEEN)


def compare_sampled(
    first: Mapping[str, Texts],
    second: Mapping[str, Texts],
    temperature: float,
    k: int,
    look: int = len(LOOKS) - 1,
    alpha: float = ALPHA,
    looks: Sequence[float] = LOOKS,
) -> SampledResult:
    """Every prompt that both sides answered, at the given look. `alpha`: this comparison's share of the error."""
    tests = tuple(compare_prompt(prompt, first[prompt], second[prompt]) for prompt in first if second.get(prompt))
    by_look = levels(looks, alpha)
    pairs = [_pair_chance(first, second, j) for j in range(k - 1)]
    return SampledResult(
        temperature=temperature,
        k=k,
        tests=tests,
        look=look,
        looks=len(looks),
        level=by_look[look],
        final_level=by_look[-1],
        p_all=chance(sum(t.chi2 for t in tests), sum(t.df for t in tests)),
        p_worst=min((1.0, *(len(tests) * t.p_value for t in tests))),
        p_pairs=min((1.0, *(len(pairs) * pair for pair in pairs))),
    )


def _pair_chance(first: Mapping[str, Texts], second: Mapping[str, Texts], j: int) -> float:
    """Of tokens j and j + 1, over all prompts; a text that has ended by then is an outcome too."""
    tests = [
        compare_prompt(
            prompt, [text[j : j + 2] for text in first[prompt]], [text[j : j + 2] for text in second[prompt]]
        )
        for prompt in first
        if second.get(prompt)
    ]
    return chance(sum(test.chi2 for test in tests), sum(test.df for test in tests))


def compare_prompt(prompt: str, first: Texts, second: Texts) -> PromptTest:
    """Pearson's test over the bins of the prefix tree."""
    n, m = len(first), len(second)
    statistic, distance, bins = 0.0, 0.0, prefix_bins(first, second)
    for a, b in bins:
        share = (a + b) / (n + m)
        statistic += (a - n * share) ** 2 / (n * share) + (b - m * share) ** 2 / (m * share)
        distance += abs(a / n - b / m) / 2
    df = max(0, len(bins) - 1)
    return PromptTest(prompt, n, m, statistic, df, chance(statistic, df), distance)


def prefix_bins(first: Texts, second: Texts, least: float | None = None) -> list[tuple[int, int]]:
    """Counts of both samples, bin by bin; every bin's expected count in the smaller sample is at least `least`."""
    if not first or not second:
        return []
    if least is None:
        least = max(LEAST_EXPECTED, LEAST_SHARE * min(len(first), len(second)))
    counts = (Counter(map(tuple, first)), Counter(map(tuple, second)))
    needed = least * (len(first) + len(second)) / min(len(first), len(second))
    leaves, rare = _split(counts, 0, needed)
    if sum(rare) >= needed or not leaves:
        return [*leaves, rare] if sum(rare) else leaves
    smallest = min(range(len(leaves)), key=lambda i: sum(leaves[i]))
    leaves[smallest] = (leaves[smallest][0] + rare[0], leaves[smallest][1] + rare[1])
    return leaves


def chance(chi2: float, df: int) -> float:
    """Of a statistic at least so large under one law; 1 without a degree of freedom."""
    if df < 1:
        return 1.0
    from scipy.special import chdtrc

    return float(chdtrc(df, chi2))


Counts = tuple[Counter[tuple[int | str, ...]], Counter[tuple[int | str, ...]]]


def _split(counts: Counts, depth: int, needed: float) -> tuple[list[tuple[int, int]], tuple[int, int]]:
    """(leaves, what is too rare for one) of the texts that share their first `depth` tokens."""
    leaves: list[tuple[int, int]] = []
    rare = [0, 0]
    for branch, size in _branches(counts, depth):
        if sum(size) < needed:
            rare = [rare[0] + size[0], rare[1] + size[1]]
        elif len(next(iter(branch[0] or branch[1]))) <= depth:
            leaves.append(size)
        else:
            below, left = _split(branch, depth + 1, needed)
            # A branch's own rare texts make one bin of it, if there are enough of them.
            if sum(left) >= needed:
                below.append(left)
                left = (0, 0)
            leaves += below
            rare = [rare[0] + left[0], rare[1] + left[1]]
    return leaves, (rare[0], rare[1])


def _branches(counts: Counts, depth: int) -> Iterator[tuple[Counts, tuple[int, int]]]:
    """The texts by their token at `depth`; those that end before it are a branch of their own."""
    by_token: dict[object, Counts] = {}
    for side in (0, 1):
        for text, count in counts[side].items():
            key = (text[depth],) if len(text) > depth else ()
            by_token.setdefault(key, (Counter(), Counter()))[side][text] = count
    for branch in by_token.values():
        yield branch, (branch[0].total(), branch[1].total())

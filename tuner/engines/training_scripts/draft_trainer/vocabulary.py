"""Which of the target's tokens a draft may draft. Pure, no torch."""

from collections.abc import Sequence


def choose(answered: Sequence[int], asked: Sequence[int], size: int, always: Sequence[int] = ()) -> list[int]:
    """The `size` token ids that answers hold most often, then prompts, then the lowest ids; ascending.

    `answered`, `asked`: how often each id occurs. `always`: ids that are kept whatever the counts, such as the end.
    """
    kept = set(always)
    if not len(kept) <= size <= len(answered):
        raise ValueError(f"a draft vocabulary of {size} does not fit between {len(kept)} and {len(answered)} tokens")
    ranked = sorted(range(len(answered)), key=lambda token: (-answered[token], -asked[token], token))
    for token in ranked:
        if len(kept) == size:
            break
        kept.add(token)
    return sorted(kept)


def offsets(kept: Sequence[int]) -> list[int]:
    """`d2t`: target id minus draft id, for each draft id."""
    return [token - index for index, token in enumerate(kept)]


def coverage(answered: Sequence[int], kept: Sequence[int]) -> float | None:
    """Share of the answers' tokens that can be drafted; None where there are no answers."""
    whole = sum(answered)
    return sum(answered[token] for token in kept) / whole if whole else None

"""Questions written by template: as many different ones as training needs, the same for a seed. Never for measuring."""

import json
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from random import Random

from tuner.errors import UserError
from tuner.prompts.rows import Prompt

_SLOT = re.compile(r"\{(\w+)(?::(\d+)-(\d+))?\}")
#: Draws that brought nothing new, one after another, before a kind of question counts as used up.
PATIENCE = 1000


def written_questions(count: int, seed: int) -> tuple[Prompt, ...]:
    """`count` different questions, a third each of chat, maths and code. UserError where templates give fewer."""
    stored = json.loads((files("tuner.prompts") / "written.json").read_text(encoding="utf-8"))
    kinds = sorted(stored["patterns"])
    found: list[Prompt] = []
    for index, kind in enumerate(kinds):
        wanted = count // len(kinds) + (index < count % len(kinds))
        texts = _different(stored["patterns"][kind], stored["lists"], wanted, Random(f"{seed}/{kind}"))
        if len(texts) < wanted:
            raise UserError(
                f"templates for {kind} give {len(texts)} different questions and not {wanted}: ask for fewer"
            )
        found += [
            Prompt(f"written-{kind}/{number}", f"written-{kind}", "en", (("user", text),))
            for number, text in enumerate(texts, 1)
        ]
    return tuple(found)


def _different(patterns: Sequence[str], lists: Mapping[str, Sequence[str]], count: int, draw: Random) -> list[str]:
    """Every pattern in its turn, so that those with many fillings do not crowd out the others."""
    texts: dict[str, None] = {}
    turn = fruitless = 0
    while len(texts) < count and fruitless < PATIENCE:
        before = len(texts)
        texts.setdefault(_filled(patterns[turn % len(patterns)], lists, draw))
        fruitless = 0 if len(texts) > before else fruitless + 1
        turn += 1
    return list(texts)


def _filled(pattern: str, lists: Mapping[str, Sequence[str]], draw: Random) -> str:
    """`{name}` is an entry of that list, the same at every place of one text; `{a:2-9}` a whole number."""
    chosen: dict[str, str] = {}

    def fill(slot: re.Match[str]) -> str:
        name, low, high = slot.groups()
        if name not in chosen:
            chosen[name] = str(draw.randint(int(low), int(high))) if low else draw.choice(lists[name])
        return chosen[name]

    return _SLOT.sub(fill, pattern)

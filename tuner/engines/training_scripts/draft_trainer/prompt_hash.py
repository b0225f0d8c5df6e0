"""What tells a prompt that is held out from one that may be learned from. Pure, no torch."""

import hashlib
import json
from collections.abc import Iterable, Sequence


def prompt_hash(messages: Iterable[Sequence[str]]) -> str:
    """As the tuner's: SHA-256 of roles and texts, with runs of white space as one space and in lower case."""
    plain = [[role, " ".join(text.split()).lower()] for role, text in messages]
    return hashlib.sha256(json.dumps(plain, ensure_ascii=False).encode()).hexdigest()

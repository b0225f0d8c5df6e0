"""Which of an engine's arguments are secrets: a workload that is typed may hold none, and what is shown holds none."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

#: Narrow on purpose: engines have many flags that end in `-tokens` or `-key` and hold no secret.
_SECRET_FLAG = re.compile(r"--(.*-)?((api|access)-key|(hf|auth|access|bearer)-token|secret|password)")


def is_secret_flag(word: str) -> bool:
    """Whether an engine's argument is a flag for a secret: `--hf-token`, also as `--hf_token=x`."""
    # vLLM takes `_` for `-` in the names of its flags.
    return _SECRET_FLAG.fullmatch(_flag(word).replace("_", "-")) is not None


def refusals(args: Sequence[str]) -> Iterator[str]:
    """A sentence on each secret, with its flag and never its value."""
    for word in filter(is_secret_flag, args):
        yield (
            f"{_flag(word)} looks like a secret, and a workload is stored with its reports: remove it, and export what "
            "the engine needs (HF_TOKEN for the hub) in the shell, from which the engine inherits it"
        )


def _flag(word: str) -> str:
    """The flag alone: what follows it in the same argument may be the secret."""
    return re.split(r"[=\s]", word, maxsplit=1)[0]

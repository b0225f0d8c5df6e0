"""Keeps secrets that people put into engine flags out of everything that is shown; variables never hold any."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tuner.spec.secret_words import is_secret_flag


def secret_variable(flag: str) -> str:
    """The variable a script reads a secret flag's value from: `--hf-token` -> `HF_TOKEN`."""
    return flag.lstrip("-").split("=")[0].replace("-", "_").upper()


def shown_argv(argv: Sequence[str]) -> tuple[str, ...]:
    """The command with every secret flag's value replaced by the variable that should hold it, `$HF_TOKEN`."""
    shown: list[str] = []
    secret: str | None = None
    for word in argv:
        if secret is not None and not word.startswith("--"):
            shown.append(f"${secret_variable(secret)}")
        elif "=" in word and is_secret_flag(word):
            shown.append(f"{word.split('=')[0]}=${secret_variable(word)}")
        else:
            shown.append(word)
        secret = word if "=" not in word and is_secret_flag(word) else None
    return tuple(shown)


def shown_workload(dumped: dict[str, Any]) -> dict[str, Any]:
    """A dumped workload without the secrets of its engine options."""
    options = dumped.get("engine_options")
    if not isinstance(options, dict):
        return dumped
    return dumped | {"engine_options": options | {"args": list(shown_argv(options.get("args", ())))}}

"""A command for a shell, one flag a line; secrets are read from variables."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from tuner.report.redact import shown_argv

_VARIABLE = re.compile(r"(--[\w-]+=)?\$([A-Z_][A-Z0-9_]*)")


def command_lines(argv: Sequence[str]) -> str:
    """The command for a shell, one flag with its values a line; the value of a secret flag is read from a variable."""
    lines: list[list[str]] = [[]]
    for word in shown_argv(argv):
        # A value may begin with a dash too (a negative number): only words with two dashes begin a line.
        if word.startswith("--") and lines[-1]:
            lines.append([])
        lines[-1].append(_quoted(word, argv))
    return " \\\n  ".join(" ".join(line) for line in lines)


def _quoted(word: str, argv: Sequence[str]) -> str:
    variable = _VARIABLE.fullmatch(word)
    if variable and word not in argv:
        name = variable.group(2)
        return f'{variable.group(1) or ""}"${{{name}:?set {name}}}"'
    return shlex.quote(word)

"""Progress of a night: as a study's, with how long it will still take beside what is going on."""

from __future__ import annotations

import sys

from tuner.cli.progress import LiveProgress, PlainProgress, line
from tuner.run.progress import Event


class LiveNight(LiveProgress):
    """Remaining time stands in the live line; it is no line of its own."""

    _remaining = ""

    def __call__(self, event: Event) -> None:
        if event.kind == "eta":
            self._remaining = event.text
            self._status.update(event.text)
        elif event.kind in ("requests", "waiting") and self._remaining:
            self._status.update(f"{line(event).strip()}; {self._remaining}")
        else:
            super().__call__(event)


def night_progress() -> PlainProgress:
    """Live on a terminal, plain lines in a log."""
    return LiveNight() if sys.stderr.isatty() else PlainProgress()

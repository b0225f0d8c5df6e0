"""What tests of `--executor ray` share: Ray's variables, and claims as a study's journal tells them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

#: No token of Ray's own in the home folder, and nothing told to anybody.
RAY = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}


def claims(told: Sequence[dict[str, Any]]) -> list[tuple[float, float, tuple[str, ...]]]:
    """(begin, end, GPUs) of every claim, by the journal's clock; a claim of a whole node names no GPU."""
    ends = {e["number"]: datetime.fromisoformat(e["at"]).timestamp() for e in told if e["event"] == "trial_ended"}
    return [
        (datetime.fromisoformat(e["at"]).timestamp(), ends[e["number"]], tuple(e["gpus"]))
        for e in told if e["event"] == "claimed"
    ]  # fmt: skip

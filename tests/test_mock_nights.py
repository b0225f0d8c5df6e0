"""A dozen nights of one question on the mock engine, and one 8 % slower: what timing alone may and may not say.

Opt-in (`-m mock_nights`, ten minutes): on a machine with other work launches themselves differ by several percent.
"""

from __future__ import annotations

import itertools
import json

import pytest
from conftest import Bench
from sweep_bench import nights, run, sweep_file

pytestmark = [pytest.mark.mock_nights, pytest.mark.timeout(3600)]

EQUAL, SLOWER = 12, 1.08
SIM = {"base_s": 0.030, "slope": 0.05, "crowding": 0.0, "prefill_s": 0.001}
WORKLOAD = {
    "measure": {"requests": 16, "waves": 1, "warmup_requests": 1},
    "traffic": {"concurrency": [4, 8], "prompts": [{"set": "chat"}], "max_output_tokens": 16},
}


def states(bench: Bench, before: str, after: str) -> dict[tuple[str, str], set[str]]:
    """(setting, metric) to the states of its rows."""
    told = json.loads(run(bench, "compare", before, after, "--json").stdout)
    found: dict[tuple[str, str], set[str]] = {}
    for change in told["changes"]:
        found.setdefault((change["setting"], change["metric"]), set()).add(change["state"])
    return found


def test_equal_nights_show_nothing_and_eight_percent_is_a_regression(bench: Bench) -> None:
    file = sweep_file(bench, workload=WORKLOAD)
    codes = [run(bench, "sweep", file, sim=SIM).returncode for _ in range(EQUAL)]
    slow = run(bench, "sweep", file, "--json", sim=SIM | {"base_s": SIM["base_s"] * SLOWER})
    names = [folder.name for folder in nights(bench)]
    pairs = list(itertools.combinations(names[:EQUAL], 2))
    quiet = [{state for found in states(bench, *pair).values() for state in found} == {"no evidence"} for pair in pairs]
    alone = states(bench, names[0], names[-1])  # two nights, without the ten between them
    print(
        f"nights {codes}, {sum(quiet)} of {len(quiet)} pairs without evidence, slower {slow.returncode}, alone {alone}"
    )
    assert codes == [0] * EQUAL
    assert sum(quiet) >= 0.95 * len(quiet)
    told = json.loads(slow.stdout)
    assert (slow.returncode, told["state"]) == (1, "red")
    everything = next(one for one in told["changes"] if one["setting"] == "every setting")
    assert everything["state"] == "regressed"

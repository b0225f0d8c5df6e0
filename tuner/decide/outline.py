"""The launches that are certain before anything more is known, and in a sentence what may follow them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tuner.decide.evidence import Evidence
from tuner.decide.launch_cost import closing_seconds
from tuner.decide.plan import Ask, ask, explorations
from tuner.decide.plan_schedule import Make
from tuner.measure.records import CLOSING
from tuner.spec.candidates import Arm
from tuner.spec.speculation import OFF


def left_to_try(arms: Sequence[Arm], evidence: Evidence, make: Make | None = None) -> Ask | None:
    """What would be launched next if the budget had room; None where nothing untested can win by more than a tie."""
    tried = evidence.tried
    while tried and tried[-1].trial.role == CLOSING:
        tried = tried[:-1]
    following = ask(arms, replace(evidence, tried=tried), 2, make)
    return following if following is not None and not following.spec.is_off else None


def outline(
    arms: Sequence[Arm], evidence: Evidence, launches_left: int, make: Make | None = None
) -> tuple[tuple[Ask, ...], str]:
    """(launches in order, what may come between them and the last). Off again closes every plan of two or more."""
    first = ask(arms, evidence, launches_left, make)
    if first is None:
        return (), "nothing is left to launch: nothing untested can win by more than a tie, or the budget is used up"
    if first.role == CLOSING:
        return (first,), "nothing untested can win by more than a tie"
    certain = [first]
    launched = {one.spec for one in evidence.tried} | {first.spec}
    room = launches_left - 2
    for following in explorations(arms, evidence, launched):
        if room > 0:
            certain.append(following)
            room -= 1
    if launches_left > 1:
        why = "off once more: how far it drifted bounds what differences can be believed"
        certain.append(Ask(OFF, CLOSING, why, closing_seconds(evidence)))
    if room <= 0:
        return tuple(certain), "the budget leaves room for no further launch"
    told = f"before off again up to {room} further launches, of settings whose predicted interval reaches over the best"
    by_load = ", and of N by load where the best N changes with it" if make else ""
    return tuple(certain), f"{told} measured by more than a tie{by_load}; none where no setting does"

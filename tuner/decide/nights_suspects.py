"""What changed between two nights beside the figures: engine, drafts, machine; each is a suspect and no more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tuner.decide.nights import REGRESSED, NightComparison
from tuner.decide.nights_sample import NightSample, StudyFacts

#: A machine is busier when its load average rose by this share of its cores.
BUSIER = 0.25


@dataclass(frozen=True, slots=True)
class Suspect:
    """`kind`: engine, draft, target, question, arguments, machine or load."""

    study: str
    kind: str
    text: str


def suspects(before: NightSample, after: NightSample, comparison: NightComparison) -> tuple[Suspect, ...]:
    """Every difference in what was measured with, the likeliest kinds first."""
    found: list[Suspect] = []
    for study, new in after.facts.items():
        old = before.facts.get(study)
        if old is not None:
            found += [Suspect(study, kind, text) for kind, text in _differences(old, new)]
    found += _everything_slower(comparison)
    return tuple(found)


def _differences(old: StudyFacts, new: StudyFacts) -> Iterator[tuple[str, str]]:
    if old.version != new.version:
        yield "engine", f"{new.engine} was {old.version or 'of unknown version'} and is {new.version or 'unknown'} now"
    yield from _models(old, new)
    if old.question != new.question:
        yield "question", "the workload was changed: prompts, limits or engine options are not the same"
    yield from _named("arguments", "the engine resolved", dict(old.resolved), dict(new.resolved))
    yield from _named("machine", "the machine's", dict(old.host), dict(new.host))
    cores = float(dict(new.host).get("cores") or 1)
    if old.load_1m is not None and new.load_1m is not None and new.load_1m > old.load_1m + BUSIER * cores:
        yield "load", f"the machine was busier before the start: load average {old.load_1m:.1f}, then {new.load_1m:.1f}"


def _models(old: StudyFacts, new: StudyFacts) -> Iterator[tuple[str, str]]:
    known = dict(old.models)
    for place, (name, digits) in enumerate(new.models):
        kind = "draft" if place else "target"
        if name in known and known[name] is not None and digits is not None and known[name] != digits:
            yield kind, f"{kind} {name} has other files under the same name: {known[name]}, now {digits}"
    renamed = [name for name, _ in new.models if name not in known]
    if renamed and len(new.models) == len(old.models):
        gone = [name for name, _ in old.models if name not in dict(new.models)]
        kind = "target" if new.models[0][0] in renamed else "draft"
        yield kind, f"{', '.join(gone)} gave way to {', '.join(renamed)}"


def _named(kind: str, whose: str, old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name in dict.fromkeys([*old, *new]):
        if old.get(name) != new.get(name):
            yield kind, f"{whose} {name}: {old.get(name, 'not told')}, now {new.get(name, 'not told')}"


def _everything_slower(comparison: NightComparison) -> Iterator[Suspect]:
    """Off too: then it is no draft's doing."""
    slower = {c.study for c in comparison.with_state(REGRESSED) if c.metric == "tpot_p50" and c.setting == "off"}
    for study in sorted(slower):
        text = "off, which drafts nothing, is slower too: look at the machine or the engine before the drafts"
        yield Suspect(study, "machine", text)

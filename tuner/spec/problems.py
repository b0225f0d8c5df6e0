"""What is wrong with a file, in sentences: where, what, what is allowed there, and the nearest thing that is right."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from tuner.spec.json_schema import Schema, all_keys, branches, node_at, resolved
from tuner.spec.strict import Misfit
from tuner.spec.yaml_document import Document, Place

#: What other tools call a key of ours that its spelling alone does not lead to.
OTHER_NAMES = {
    "num_speculative_tokens": "n",
    "num_steps": "depth",
    "max_tokens": "max_output_tokens",
    "max_num_seqs": "max_running_requests",
    "request_rate": "rates",
    "qps": "rates",
    "batch_size": "concurrency",
    "target": "model",
    "tp": "tensor_parallel",
}
UNITS = {"_ms": "milliseconds", "_s": "seconds", "minutes": "minutes", "rates": "requests per second"}
WORDS_FOR_BOOL = {"yes": "true", "on": "true", "no": "false", "off": "false"}


def sentences(error: ValidationError, document: Document, schema: Schema) -> list[str]:
    """One sentence a problem, in the order of the file."""
    found: dict[Place, ErrorDetails] = {}
    for detail in error.errors(include_url=False):
        found.setdefault(_place(detail, document.data), detail)
    # A union fails in every branch: the branch the user meant is the one that was entered.
    inner = {place[:i] for place in found for i in range(len(place))}
    kept = [(place, detail) for place, detail in found.items() if place not in inner]
    kept.sort(key=lambda item: document.line(item[0]))
    return [f"{document.at(place)}: {_sentence(place, detail, document, schema)}" for place, detail in kept]


def shown(place: Place) -> str:
    """`drafts[0].n`"""
    return re.sub(r"^\.", "", "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in place))


def _place(detail: ErrorDetails, data: Any) -> Place:
    """The way through the file: pydantic's, without the names it gives to the branches of a union."""
    place: list[str | int] = []
    here = data
    for i, step in enumerate(detail["loc"]):
        last = i == len(detail["loc"]) - 1
        if isinstance(here, dict) and (step in here or (last and detail["type"] == "missing")):
            place.append(step)
            here = here.get(step)
        elif isinstance(here, list) and isinstance(step, int):
            place.append(step)
            here = here[step]
    misfit = detail.get("ctx", {}).get("error")
    return (*place, misfit.key) if isinstance(misfit, Misfit) else tuple(place)


def _sentence(place: Place, detail: ErrorDetails, document: Document, schema: Schema) -> str:
    kind, where = detail["type"], shown(place)
    if kind == "extra_forbidden":
        return f"{where} is not a key: {_right_key(place, schema)}"
    allowed = _allowed(schema, node_at(schema, place), _unit(place))
    if kind == "missing":
        return f"{where} is missing: add it ({_meaning(node_at(schema, place)) or allowed})"
    if kind == "value_error":
        return f"{where}: {detail['ctx']['error']}"
    hint = _hint(detail["input"], document.typed(place), schema, node_at(schema, place))
    return f"{where} must be {allowed}, not {_given(detail['input'])}{hint}"


def _meaning(node: Schema) -> str:
    """The key's own description within a sentence; none where the words allowed say more."""
    text = "" if "enum" in node else node.get("description", "").rstrip(".")
    return text[:1].lower() + text[1:]


def _right_key(place: Place, schema: Schema) -> str:
    key, section = str(place[-1]), place[:-1]
    keys = [k for branch in branches(schema, node_at(schema, section)) for k in branch.get("properties", {})]
    if close := _nearest(key, keys):
        unit = _unit((close,))
        return f"did you mean {close}{f' ({unit})' if unit and unit != close else ''}?"
    ways = list(all_keys(schema))
    known = _nearest(key, [way[-1] for way in ways], cutoff=0.8)
    if homes := dict.fromkeys(".".join(way) for way in ways if way[-1] == known):
        return f"did you mean {' or '.join(homes)}?"
    return f"use {', '.join(keys)}"


def _nearest(word: str, words: Sequence[str], cutoff: float = 0.6) -> str | None:
    if OTHER_NAMES.get(word) in words:
        return OTHER_NAMES[word]
    return next(iter(get_close_matches(word.lower(), words, n=1, cutoff=cutoff)), None)


def _unit(place: Place) -> str | None:
    key = next((str(step) for step in reversed(place) if isinstance(step, str)), "")
    return next((unit for end, unit in UNITS.items() if key == end or (end[0] == "_" and key.endswith(end))), None)


def _allowed(schema: Schema, node: Schema, unit: str | None = None, many: bool = False) -> str:
    """What may stand here, in words; `many`: the plural, for the items of a list."""
    words = sorted((_branch_in_words(schema, branch, unit, many) for branch in branches(schema, node)), key=len)
    words = [word for word in words if word != "a whole number" or "a number" not in words]
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 2 else words)


def _branch_in_words(schema: Schema, node: Schema, unit: str | None, many: bool) -> str:
    kind = node.get("type")
    if "const" in node:
        return str(node["const"])
    if "enum" in node:
        return f"one of {', '.join(node['enum'])}"
    if kind in ("integer", "number"):
        noun = "whole number" if kind == "integer" else "number"
        of_unit = f" of {unit}" if unit else ""
        return f"{f'{noun}s' if many else f'a {noun}'}{of_unit}{_bounds(node)}"
    if kind == "array":
        least = "one or more " if node.get("minItems") else ""
        return f"{'lists' if many else 'a list'} of {least}{_allowed(schema, node['items'], unit, many=True)}"
    if kind == "object":
        mapping = "mappings" if many else "a mapping"
        if "properties" in node:
            return f"{mapping} with the keys {', '.join(node['properties'])}"
        return f"{mapping} of names to {_allowed(schema, node['additionalProperties'], unit)}"
    if kind == "string":
        text = "texts" if many else "text"
        return f"{text} ({node['description']})" if "pattern" in node else text
    return "true or false" if kind == "boolean" else "something else"


def _bounds(node: Schema) -> str:
    above, least, most = node.get("exclusiveMinimum"), node.get("minimum"), node.get("maximum")
    if above is not None:
        return f" above {above}" + (f", at most {most}" if most is not None else "")
    if least is not None and most is not None:
        return f" from {least} to {most}"
    return f" of at least {least}" if least is not None else ""


def _given(value: Any) -> str:
    if value is None:
        return "an empty value"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f"the text {value[:60]!r}" if value else "an empty text"
    if isinstance(value, dict | list):
        return ("a mapping" if isinstance(value, dict) else "a list") + ("" if value else " with nothing in it")
    return f"{value}"


def _hint(value: Any, typed: str | None, schema: Schema, node: Schema) -> str:
    """The nearest right thing to type, where it is plain."""
    options = branches(schema, node)
    kinds = {option.get("type") for option in options}
    if isinstance(value, str):
        return _hint_for_text(value, [w for o in options for w in o.get("enum", [o.get("const")]) if w], kinds)
    if value is None or isinstance(value, list):
        return ""
    if isinstance(value, dict):
        items = [resolved(schema, option.get("items", {})).get("type") for option in options]
        return ": begin each item with a dash" if "object" in items else ""
    if "string" in kinds and "pattern" not in node and typed is not None:
        return f': write "{typed}", in quotes'
    return f": write [{typed}]" if kinds == {"array"} and typed is not None else ""


def _hint_for_text(text: str, words: list[str], kinds: set[str | None]) -> str:
    if close := _nearest(text, words):
        return f": did you mean {close}?"
    if "boolean" in kinds and text.lower() in WORDS_FOR_BOOL:
        return f": write {WORDS_FOR_BOOL[text.lower()]}"
    if kinds & {"integer", "number"}:
        if re.fullmatch(r"[-+]?((0|[1-9]\d*)(\.\d*)?|\.\d+)", text):
            return f": write {text} without quotes"
        if re.match(r"[-+.]?\d", text):
            return ": write the bare number, such as 300"
    return f": write [{text}]" if kinds == {"array"} and text else ""

"""The JSON Schema of what people type: for editors, and for the words with which a wrong value is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from tuner.spec.workload import Workload

Schema = dict[str, Any]
DIALECT = "https://json-schema.org/draft/2020-12/schema"


class _Untitled(GenerateJsonSchema):
    """A title that repeats the key says nothing."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


@cache
def schema_of(model: type[BaseModel]) -> Schema:
    return {"$schema": DIALECT, **model.model_json_schema(schema_generator=_Untitled)}


def workload_schema_text() -> str:
    """`schema/workload.schema.json`, to the byte."""
    return schema_text(Workload)


def schema_text(model: type[BaseModel]) -> str:
    return json.dumps(schema_of(model), indent=2, ensure_ascii=False) + "\n"


def resolved(schema: Schema, node: Schema) -> Schema:
    """The node itself, or the definition it refers to."""
    name = node.get("$ref", "").rpartition("/")[2]
    return dict(schema["$defs"][name]) if name else node


def branches(schema: Schema, node: Schema) -> tuple[Schema, ...]:
    """What a value may be, one schema each; an optional key's null is left out."""
    node = resolved(schema, node)
    if "anyOf" in node and "properties" not in node:
        return tuple(b for option in node["anyOf"] for b in branches(schema, option) if b.get("type") != "null")
    return (node,)


def node_at(schema: Schema, place: tuple[str | int, ...]) -> Schema:
    """The schema of the value at a place; an empty one, which allows everything, where none is given."""
    node = schema
    for step in place:
        node = next((child for b in branches(schema, node) if (child := _child(b, step)) is not None), {})
    return node


def _child(node: Schema, step: str | int) -> Schema | None:
    if isinstance(step, int):
        return node.get("items")
    extra = node.get("additionalProperties")
    return node.get("properties", {}).get(step) or (extra if isinstance(extra, dict) else None)


def all_keys(schema: Schema, node: Schema | None = None, place: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every key there is, as the way to it through the sections."""
    for branch in branches(schema, schema if node is None else node):
        for key, child in branch.get("properties", {}).items():
            yield (*place, key)
            yield from all_keys(schema, child, (*place, key))
        if "items" in branch:
            yield from all_keys(schema, branch["items"], place)

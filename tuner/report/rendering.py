"""Templates to text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from tuner.report.tables import one_line

TEMPLATES = Path(__file__).with_name("templates")


def render(template: str, context: Mapping[str, Any]) -> str:
    """A name a template uses and nobody gave is an error. Runs of blank lines become one: Markdown needs no more."""
    # Escaping would spoil commands; tables and lists, where engines' own words appear, pass through `one_line`.
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
    )
    environment.filters["one_line"] = one_line
    text = environment.get_template(template).render(context)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"

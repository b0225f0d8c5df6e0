"""`profiles/drafts.yaml`: public drafts by target, and how a target is recognised by its hub id, folder or config."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import Field

from tuner.spec.draft import Method
from tuner.spec.load import validated
from tuner.spec.profiles import profiles_dir
from tuner.spec.strict import Strict, Text
from tuner.spec.yaml_document import parse_document, read_text

FILE = "drafts.yaml"


class KnownDraft(Strict):
    """One public draft: facts with their source."""

    method: Method = Field(description="How it drafts.")
    model: Text | None = Field(None, description="Hub id, or a folder beside the file; none for mtp.")
    format: Literal["eagle3", "eagle", "speculators", "dflash", "dspark", "medusa", "model", "mtp"] = Field(
        description="The layout of its files."
    )
    engines: list[Literal["vllm", "sglang"]] = Field(min_length=1, description="Engines known to load it.")
    source: Text = Field(description="Where the pair is published.")
    note: Text | None = Field(None, description="What its card says on its use.")

    @property
    def place(self) -> str | None:
        """The model as an engine can be given it: a shipped folder by its full path."""
        if self.model is not None and self.model.startswith("./"):
            return str((profiles_dir() / self.model).resolve())
        return self.model


class KnownTarget(Strict):
    """A target and its drafts, the ones to try first at the top."""

    target: Text = Field(description="Its hub id.")
    names: list[Text] = Field([], description="Other names of the same model.")
    drafts: list[KnownDraft] = Field(min_length=1, description="Drafts made for it.")

    def is_called(self, names: Iterable[str]) -> bool:
        """By the last part of a name alone: mirrors and folders differ before it."""
        own = {last_part(name) for name in (self.target, *self.names)}
        return any(last_part(name) in own for name in names)


class Catalogue(Strict):
    targets: list[KnownTarget] = Field(min_length=1, description="Targets with public drafts.")


def last_part(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2].lower()


@cache
def read_catalogue(path: Path | None = None) -> Catalogue:
    """The shipped catalogue, or the one at `path`. UserError names what is wrong in it."""
    path = path or profiles_dir() / FILE
    return validated(parse_document(read_text(path), path), Catalogue)


def known_drafts(names: Iterable[str], catalogue: Catalogue | None = None) -> tuple[KnownDraft, ...]:
    """Drafts of the target that goes by one of these names; none where it is not listed."""
    names = tuple(name for name in names if name)
    listed = (catalogue or read_catalogue()).targets
    return tuple(draft for target in listed if target.is_called(names) for draft in target.drafts)

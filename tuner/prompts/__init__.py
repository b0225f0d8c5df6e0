"""Prompt sets: the project's own, and the reading of people's files in the formats they have."""

from tuner.prompts.load import load_set, vendored_sets
from tuner.prompts.mixture import interleave
from tuner.prompts.rows import Prompt

__all__ = ["Prompt", "interleave", "load_set", "vendored_sets"]

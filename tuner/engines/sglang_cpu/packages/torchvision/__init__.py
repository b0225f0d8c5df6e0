"""Stands in for torchvision, which a text model needs only to be importable."""

# mypy: ignore-errors
import cpu_stand_in

__version__ = "0.0"
cpu_stand_in.install(__name__)

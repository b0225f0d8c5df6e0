"""tuner: whether speculative decoding pays for a workload, with what setting, and how sure we are."""

__version__ = "0.1.0"

"""What is known against a setting's output before it is measured: from what was asked, then from what was resolved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuner.engines.base import Engine, LaunchOptions
from tuner.engines.sglang_lossy import resolved_reason
from tuner.spec.speculation import SpecConfig


def known_lossy(
    engine: Engine, spec: SpecConfig, options: LaunchOptions, temperature: float, sampling: Mapping[str, Any],
    resolved: Mapping[str, str],
) -> str | None:  # fmt: skip
    """Why output at this temperature is known not to be the target's. `resolved`: of the running server; may be empty.

    Requests' `sampling` and the launch's options tell more than a server does, so they are asked first.
    """
    why, environment = engine.lossy(spec, options, temperature, sampling), engine.environment
    if why is None and environment.engine == "sglang" and not spec.is_off:
        why = resolved_reason(resolved, temperature, environment.accelerator)
    return why

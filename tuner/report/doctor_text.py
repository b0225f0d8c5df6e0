"""What doctor found, for people and as JSON."""

from __future__ import annotations

import dataclasses
import json

from tuner.run.doctor import Diagnosis


def doctor_json(diagnosis: Diagnosis) -> str:
    return json.dumps(
        {
            "ok": diagnosis.ok,
            "host": diagnosis.host.to_dict(),
            "checks": [dataclasses.asdict(checkup) for checkup in diagnosis.checkups],
        },
        indent=2,
        ensure_ascii=False,
    )


def doctor_text(diagnosis: Diagnosis) -> str:
    """One line each; what to do behind it."""
    width = max(len(checkup.what) for checkup in diagnosis.checkups)
    return "\n".join(
        f"{c.status:<4}  {c.what:<{width}}  {c.text}{f'  ->  {c.remedy}' if c.remedy else ''}"
        for c in diagnosis.checkups
    )

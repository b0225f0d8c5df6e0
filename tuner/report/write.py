"""A study's report and the files to deploy, all from stored records: it can be made again at any time."""

from __future__ import annotations

from pathlib import Path

from tuner.report.data import ReportInput
from tuner.report.launch_script import TABLE_FILE, adaptive_table, launch_script
from tuner.report.page import page
from tuner.report.recommendation_json import recommendation_json
from tuner.report.skill import skill
from tuner.run.files import make_folder, write_atomic

__all__ = ["ReportInput", "write_report"]


def write_report(data: ReportInput, folder: Path, outputs: Path) -> None:
    """`report.md` and its plots into `folder`; skill file, `recommendation.json` and `launch.sh` into `outputs`.

    A plot or script there is nothing for is removed if an earlier report left one, so that all files tell one study.
    """
    make_folder(folder)
    make_folder(outputs)
    plots = draw(data)
    for name, png in plots.items():
        _write(folder / name, png)
    _write(outputs / "recommendation.json", recommendation_json(data))
    _write(outputs / "skill-eagle3-tuner.md", skill(data))
    table = adaptive_table(data)
    _write(outputs / TABLE_FILE, f"{table}\n" if table else None)
    script = launch_script(data)
    _write(outputs / "launch.sh", script)
    if script is not None:
        (outputs / "launch.sh").chmod(0o755)
    _write(folder / "report.md", page(data, plots))


def draw(data: ReportInput) -> dict[str, bytes | None]:
    """PNGs by file name; None where there is nothing to draw."""
    # matplotlib takes most of a second to import, and only reports need it.
    from tuner.report.drawing import png
    from tuner.report.plots import acceptance_plot, speedup_plot
    from tuner.report.tpot_plot import tpot_plot
    from tuner.report.tree_plot import tree_plot

    figures = {
        "acceptance.png": acceptance_plot(data.evidence),
        "tpot.png": tpot_plot(data.evidence, data.predictions),
        "speedup.png": speedup_plot(data.verdicts, data.evidence.objective),
        "trees.png": tree_plot(data.evidence),
    }
    return {name: png(figure) if figure else None for name, figure in figures.items()}


def _write(path: Path, content: str | bytes | None) -> None:
    if content is None:
        path.unlink(missing_ok=True)
    else:
        write_atomic(path, content)

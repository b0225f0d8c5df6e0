"""How many GPUs of its machine a launch computes with."""

from __future__ import annotations

from tuner.engines.base import LaunchOptions
from tuner.engines.sglang_limits import flag_number, flag_value


def gpus_of(engine: str, options: LaunchOptions) -> int:
    """Ranks by tensor, times pipeline stages and replicas that engine_options.args ask for. UserError for no number."""
    args = [_with_hyphens(arg) for arg in options.args]
    stages = flag_number(args, "--pipeline-parallel-size", "--pp-size" if engine == "sglang" else "-pp")
    if engine == "sglang":
        # Attention data parallelism divides the tensor ranks and adds none.
        replicas = 1 if "--enable-dp-attention" in args else flag_number(args, "--dp-size", "--data-parallel-size")
        return options.tensor_parallel * stages * replicas
    local = ("--data-parallel-size-local", "-dpl")  # of replicas over several machines, those of this one
    names = local if flag_value(args, *local) else ("--data-parallel-size", "-dp")
    prefill = flag_number(args, "--prefill-context-parallel-size", "-pcp")
    return options.tensor_parallel * stages * prefill * flag_number(args, *names)


def _with_hyphens(arg: str) -> str:
    """vLLM takes underscores in the names of its flags too."""
    name, equals, value = arg.partition("=")
    return f"{name.replace('_', '-')}{equals}{value}" if arg.startswith("--") else arg

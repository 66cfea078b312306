"""KV blocks with a prefix cache, by vLLM's rules: full blocks are known by the hash of everything up to their end."""

from collections import OrderedDict
from dataclasses import dataclass, field


@dataclass
class Blocks:
    """A pool of `total` blocks of `size` tokens. One of them is never used (vLLM's null block).

    A free block keeps its content until it is taken for something else, the one freed longest ago first.
    """

    total: int
    size: int
    caching: bool
    free: "OrderedDict[int, None]" = field(init=False)
    users: dict[int, int] = field(default_factory=dict)
    hash_of: dict[int, int] = field(default_factory=dict)
    by_hash: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.free = OrderedDict.fromkeys(range(1, self.total))

    @property
    def usage(self) -> float:
        """Share of the usable blocks that are taken."""
        return 1.0 - len(self.free) / max(self.total - 1, 1)

    def needed(self, tokens: int) -> int:
        """Blocks for so many tokens."""
        return -(-tokens // self.size)

    def hashes(self, tokens: list[int]) -> list[int]:
        """Hash of every full block of a sequence."""
        found: list[int] = []
        before = 0
        for start in range(0, len(tokens) - self.size + 1, self.size):
            before = hash((before, tuple(tokens[start : start + self.size])))
            found.append(before)
        return found

    def cached(self, hashes: list[int], most: int) -> list[int]:
        """Blocks that hold the beginning of a sequence, at most `most` of them."""
        found: list[int] = []
        if self.caching:
            for value in hashes[:most]:
                block = self.by_hash.get(value)
                if block is None:
                    break
                found.append(block)
        return found

    def use(self, blocks: list[int]) -> None:
        """Take blocks that hold what is wanted."""
        for block in blocks:
            self.free.pop(block, None)
            self.users[block] = self.users.get(block, 0) + 1

    def room(self, count: int, hits: list[int]) -> bool:
        """Whether `count` further blocks are free when the hits have been taken."""
        return len(self.free) - sum(1 for block in hits if block in self.free) >= count

    def take(self, count: int) -> list[int] | None:
        """So many empty blocks, or None if there are not."""
        if len(self.free) < count:
            return None
        taken = [self.free.popitem(last=False)[0] for _ in range(count)]
        for block in taken:
            value = self.hash_of.pop(block, None)
            if value is not None and self.by_hash.get(value) == block:
                del self.by_hash[value]
            self.users[block] = 1
        return taken

    def keep(self, block: int, value: int) -> None:
        """A block is full: from now on others find it."""
        if self.caching and value not in self.by_hash:
            self.by_hash[value] = block
            self.hash_of[block] = value

    def give_back(self, blocks: list[int]) -> None:
        """Release, the end of the sequence first to be overwritten."""
        for block in reversed(blocks):
            self.users[block] -= 1
            if self.users[block] == 0:
                del self.users[block]
                self.free[block] = None

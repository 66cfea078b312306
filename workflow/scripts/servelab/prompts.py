"""Prompts as token ids, drawn from a seed: the same study draws the same prompts, no two requests share any.

Every prompt has a generator of its own, seeded with the study's seed, the point's key, the role and the index
of the request. Two prompts agree in a block of 16 ids with a probability below 10^-40; warm-up prompts differ
by their role.
"""

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from servelab.spec import Workload

# Special and byte-fallback tokens stand at the beginning of a vocabulary, special and padding ones at its
# end.
EDGE_IDS = 512
UNKNOWN_VOCAB = 20_000

Ids = npt.NDArray[np.int32]


@dataclass(frozen=True)
class PromptSource:
    """Draws the prompts of one point.

    seed: the study's. point: text that is different for every point and repeat (the point's key).
    vocab_size: ids are drawn below it; 0 if not known, then below 20,000.
    """

    seed: int
    point: str
    vocab_size: int = 0

    def id_range(self) -> tuple[int, int]:
        """[low, high) of the ids used: without the vocabulary's edges where it is large enough to spare them."""
        high = self.vocab_size or UNKNOWN_VOCAB
        if high >= 8 * EDGE_IDS:
            return EDGE_IDS, high - EDGE_IDS
        return min(high // 8, 16), high

    def generator(self, *what: str | int) -> np.random.Generator:
        """A generator of its own for `what`, the same for the same source."""
        text = "\0".join(str(part) for part in (self.seed, self.point, *what))
        return np.random.Generator(
            np.random.PCG64(int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "big"))
        )

    def draw(self, count: int, *what: str | int) -> Ids:
        """`count` ids for `what`."""
        low, high = self.id_range()
        return self.generator(*what).integers(low, high, count, dtype=np.int32)

    def prompt(self, role: str, index: int, tokens: int, workload: Workload) -> Ids:
        """The ids of one request of a workload: exactly `tokens` of them, int32.

        The first `shared_prefix_tokens` are those of the request's prefix group. Raises ValueError if the
        prefix leaves no room for a token of the request's own.
        """
        if workload.same_prompt:
            return self.draw(tokens, "same", role)
        shared = workload.shared_prefix_tokens
        if not shared or role in ("victim",):
            return self.draw(tokens, role, index)
        if shared >= tokens:
            raise ValueError(f"shared_prefix_tokens {shared} is not below input_tokens {tokens}")
        group = prefix_group(workload, index, role)
        prefix = self.draw(shared, "prefix", role, group if group is not None else 0)
        return np.concatenate([prefix, self.draw(tokens - shared, role, index)])


def prefix_group(workload: Workload, index: int, role: str = "measured") -> int | None:
    """The group whose prefix a request has; None where prompts share nothing. Requests take turns.

    Warm-up requests are one group of their own, so that the second of them meets the prefix of the first in
    the cache.
    """
    if workload.same_prompt or (role == "warmup" and workload.shared_prefix_tokens):
        return 0
    if not workload.shared_prefix_tokens:
        return None
    return index % max(workload.prefix_groups, 1)


def words(ids: Ids) -> str:
    """Ids as text, for chat endpoints that take no ids: one short word an id; their number of tokens is not exact."""
    return " ".join(f"w{token:x}" for token in ids.tolist())

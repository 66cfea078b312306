"""Prompts: exact lengths, the same for the same seed, shared only where wanted."""

import itertools

import numpy as np
import pytest

from servelab.prompts import EDGE_IDS, PromptSource, prefix_group
from servelab.spec import Workload

PLAIN = Workload(input_tokens=64, output_tokens=4)


def first_blocks(source: PromptSource, workload: Workload, requests: int = 50) -> list[tuple[int, ...]]:
    roles = ("measured", "warmup", "victim", "inserted")
    return [
        tuple(source.prompt(role, index, 64, workload)[:16].tolist())
        for role in roles
        for index in range(requests)
    ]


def test_the_same_source_draws_the_same_prompts() -> None:
    """A study measured again sends what it sent before, in whatever order prompts are asked for."""
    one, two = PromptSource(3, "key", 49152), PromptSource(3, "key", 49152)
    later = [one.prompt("measured", index, 40, PLAIN) for index in (5, 0)]
    again = [two.prompt("measured", index, 40, PLAIN) for index in (0, 5)]
    assert np.array_equal(later[0], again[1]) and np.array_equal(later[1], again[0])
    assert not np.array_equal(later[0], later[1])


def test_no_two_requests_of_a_study_share_a_first_block() -> None:
    """Over points, repeats (other keys), seeds, roles and indices, no block of 16 ids comes twice."""
    sources = [PromptSource(seed, key, 49152) for seed, key in itertools.product((1, 2), ("a", "b", "c"))]
    blocks = [block for source in sources for block in first_blocks(source, PLAIN)]
    assert len(blocks) == 6 * 200 and len(set(blocks)) == len(blocks)


@pytest.mark.parametrize("tokens", [1, 16, 512, 32_768])
def test_prompts_have_exactly_the_tokens_asked(tokens: int) -> None:
    """Token ids are counted, not estimated."""
    assert len(PromptSource(1, "k", 49152).prompt("measured", 0, tokens, PLAIN)) == tokens


@pytest.mark.parametrize("vocab", [0, 300, 1000, 32_000, 151_936])
def test_ids_stay_inside_the_vocabulary_and_off_its_edges(vocab: int) -> None:
    """Large vocabularies lose their special ids at both ends; small ones are used nearly whole."""
    source = PromptSource(1, "k", vocab)
    ids = source.draw(20_000, "x")
    low, high = source.id_range()
    assert low <= ids.min() and ids.max() < high <= (vocab or 20_000)
    assert len(np.unique(ids)) > min(high - low, len(ids)) // 2
    if vocab >= 8 * EDGE_IDS:
        assert low == EDGE_IDS and high == vocab - EDGE_IDS


def test_a_prefix_group_shares_its_prefix_and_nothing_more() -> None:
    """Requests of a group agree in the shared tokens, differ right after; groups differ; warm-up has other prefixes."""
    workload = Workload(input_tokens=96, output_tokens=1, shared_prefix_tokens=64, prefix_groups=2)
    source = PromptSource(1, "k", 49152)
    prompts = [source.prompt("measured", index, 96, workload).tolist() for index in range(4)]
    assert prompts[0][:64] == prompts[2][:64] and prompts[1][:64] == prompts[3][:64]
    assert prompts[0][:16] != prompts[1][:16]
    assert len({tuple(prompt[64:80]) for prompt in prompts}) == 4
    warm = [source.prompt("warmup", index, 96, workload).tolist() for index in range(2)]
    assert warm[0][:64] == warm[1][:64] and warm[0][64:] != warm[1][64:] and warm[0][:16] != prompts[0][:16]
    assert [prefix_group(workload, index) for index in range(4)] == [0, 1, 0, 1]


def test_same_prompt_is_one_prompt_and_the_warm_up_is_not_it() -> None:
    """The trap of E11: all measured requests are the same prompt, which no warm-up request has put into the cache."""
    workload = Workload(input_tokens=48, output_tokens=1, same_prompt=True)
    source = PromptSource(1, "k", 49152)
    same = {tuple(source.prompt("measured", index, 48, workload).tolist()) for index in range(5)}
    assert len(same) == 1
    assert tuple(source.prompt("warmup", 0, 48, workload).tolist()) not in same


def test_a_prefix_as_long_as_the_prompt_is_refused() -> None:
    """A prompt without a token of its own would be another experiment."""
    workload = Workload(input_tokens=64, output_tokens=1, shared_prefix_tokens=64)
    with pytest.raises(ValueError, match="shared_prefix_tokens 64"):
        PromptSource(1, "k", 49152).prompt("measured", 0, 64, workload)

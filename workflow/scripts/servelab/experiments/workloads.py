"""Named workloads that several experiments ask for. The name is a point's file name without its repeat."""

from collections.abc import Iterable, Mapping
from typing import TypeVar

from servelab.canonical import path_number
from servelab.config.errors import BadValueError
from servelab.experiments.base import ServerPlan
from servelab.experiments.load_sweep import at_least, point_name
from servelab.spec import Option, Workload

NamedWorkload = tuple[str, Workload]
Value = TypeVar("Value", int, str, bool)


def numbers(least: float, **keys: float | Iterable[float]) -> None:
    """Raise BadValueError for the first key with an empty list or a value below `least`."""
    for key, value in keys.items():
        at_least(key, [value] if isinstance(value, (int, float)) else value, least)


def settings(key: str, values: Iterable[Value]) -> list[Value]:
    """The values without doubles, in their order. Raises BadValueError for an empty list."""
    unique = list(dict.fromkeys(values))
    if not unique:
        raise BadValueError(key, unique, "at least one value")
    return unique


def closed(
    concurrency: int,
    input_tokens: int,
    output_tokens: int,
    requests: int,
    shared_prefix_tokens: int = 0,
    prefix_groups: int = 1,
    warmup_requests: int = -1,
) -> NamedWorkload:
    """A closed loop: c8-i512-o128; with a shared prefix the name goes on with -p3000-g4 (tokens, groups)."""
    name = point_name(concurrency, input_tokens, output_tokens)
    if shared_prefix_tokens:
        name += f"-p{path_number(shared_prefix_tokens)}-g{path_number(prefix_groups)}"
    workload = Workload(
        kind="closed",
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        concurrency=concurrency,
        requests=requests,
        shared_prefix_tokens=shared_prefix_tokens,
        prefix_groups=prefix_groups,
        warmup_requests=warmup_requests,
    )
    return name, workload


def interference(
    victim_input_tokens: int,
    victim_output_tokens: int,
    inserted: int,
    input_tokens: int,
    insert_after_tokens: int,
) -> NamedWorkload:
    """One decoding victim, long prompts inserted: v300-x3-i3500 (victim's prompt, how many, how long)."""
    name = f"v{path_number(victim_input_tokens)}-x{path_number(inserted)}-i{path_number(input_tokens)}"
    workload = Workload(
        kind="interference",
        input_tokens=input_tokens,
        output_tokens=1,
        victim_input_tokens=victim_input_tokens,
        victim_output_tokens=victim_output_tokens,
        inserted=inserted,
        insert_after_tokens=insert_after_tokens,
    )
    return name, workload


def boot(name: str) -> NamedWorkload:
    """Nothing is sent: the start itself is the measurement; `name` says which it is (first, restart)."""
    return name, Workload(kind="boot", warmup_requests=0)


def boots(options: Mapping[str, Option], starts: int, restarts: int) -> list[ServerPlan]:
    """`starts` first starts (empty compile cache) and `restarts` starts with the cache they left.

    Raises BadValueError for a negative number of restarts.
    """
    numbers(1, starts=starts)
    numbers(0, restarts=restarts)
    plans = [ServerPlan((boot("first"),), options, boot="first", starts=starts)]
    if restarts:
        plans.append(ServerPlan((boot("restart"),), options, boot="restart", starts=restarts))
    return plans

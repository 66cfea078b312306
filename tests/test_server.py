"""A server's life, from the outside: what launch() gives, what it leaves behind, what it says when it fails."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fake_server import truth
from fake_starts import fake_engine, fake_start, marked_by, running, survivors
from servelab import engine, server, server_http
from servelab.loadgen import Target
from servelab.supervised import READ_LIMIT_BYTES

pytestmark = pytest.mark.slow  # server processes start and end: seconds each


def fails(tmp_path: Path, **changes: object) -> server.ServerStartError:
    """The error of a start that must fail; nothing may be left of it."""
    note = tmp_path / "truth.jsonl"
    with (
        pytest.raises(server.ServerStartError) as caught,
        server.launch(
            fake_start(**changes),
            tmp_path / "log",
            tmp_path / "boot",  # type: ignore[arg-type]
        ),
    ):
        pytest.fail("it started")
    assert survivors(note) == []
    assert not list(scratch_folder().iterdir())
    return caught.value


@pytest.fixture(autouse=True)
def own_scratch(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Temporary files of this test's servers lie in a folder of their own, to see that none stays."""
    monkeypatch.setenv("TMPDIR", str(tmp_path_factory.mktemp("scratch")))


def scratch_folder() -> Path:
    return Path(os.environ["TMPDIR"])


def dies(tmp_path: Path, words: str) -> server.ServerStartError:
    """The error of a server that dies at start with these last words."""
    knobs = {"truth": str(tmp_path / "truth.jsonl"), "faults": [{"do": "die_at_start", "words": words}]}
    return fails(tmp_path, knobs=knobs)


def until(condition: Callable[[], bool], within_s: float = 15.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


# --- a good life
# -----------------------------------------------------------------------------------------------


def test_a_server_is_ours_answers_and_is_gone_afterwards(tmp_path: Path) -> None:
    """Within the block our own name is served to our own key; after it neither process nor port nor file is left."""
    start = fake_start(options={"max_num_seqs": 8})
    with server.launch(start, tmp_path / "log", tmp_path / "boot") as live:
        assert live.alive()
        assert server_http.served_names(live.target, 5.0) == [f"servelab-{live.session_id}"]
        with pytest.raises(ValueError, match="401"):
            server_http.served_names(replace(live.target, api_key="wrong"), 5.0)
        assert live.target.base_url.startswith("http://127.0.0.1:")
        assert 0 < live.ready_s < 20
        port = int(live.target.base_url.rsplit(":", 1)[1])
    assert not live.alive()
    assert marked_by(live.session_id) == []
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 2.0)
    assert not list(scratch_folder().iterdir())


def test_facts_say_who_the_server_is_and_hide_its_key(tmp_path: Path) -> None:
    """Version, boot, log facts, phases and cache settings are there as plain values; the key is nowhere."""
    with server.launch(fake_start(), tmp_path / "log", tmp_path / "boot") as live:
        facts = live.facts()
        key = live.target.api_key
    text = json.dumps(facts)
    assert facts["version"] == "0.31.0" and facts["boot"] == "first"
    assert facts["log"]["kv_cache_tokens"] == int(facts["cache_config"]["kv_cache_size_tokens"])
    assert facts["phases"][0][1] == 0.0 and facts["phases"][-1][2] == pytest.approx(live.ready_s, abs=0.01)
    assert len(key) >= 24 and key not in text and key not in repr(live)
    assert key not in (tmp_path / "log").read_text()


def test_the_key_is_in_no_process_list(tmp_path: Path) -> None:
    """Nobody else on the machine reads the key from a command line."""
    with server.launch(fake_start(), tmp_path / "log", tmp_path / "boot") as live:
        for pid in live.processes():
            assert live.target.api_key.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()


def test_boot_history_is_controlled(tmp_path: Path) -> None:
    """The first start on empty caches is «first», the next «restart»; boot="first" empties them, and nothing else."""
    start = fake_start()
    boots = []
    for boot in ("any", "any", "first", "restart"):
        with server.launch(replace(start, boot=boot), tmp_path / "log", tmp_path / "boot") as live:
            boots.append(live.boot)
        (tmp_path / "boot" / "note.txt").write_text("somebody's")
    assert boots == ["first", "restart", "first", "restart"]
    assert (tmp_path / "boot" / "note.txt").exists()


def test_the_log_of_each_start_follows_the_last(tmp_path: Path) -> None:
    """A log holds every start from its first byte; facts come from this start's part, marks cut out a moment's."""
    log = tmp_path / "log"
    with server.launch(fake_start(knobs={"blocks": 100}), log, tmp_path / "a") as first:
        mark = first.log_mark()
        assert first.log_since(mark) == []
    with server.launch(fake_start(knobs={"blocks": 300}), log, tmp_path / "b") as second:
        assert second.boot_log.kv_cache_tokens == 270 * 16
    assert log.read_text().count("Initializing a V1 LLM engine") == 2
    assert any("shutdown triggered" in line for line in first.log_since(mark))


# --- it does not start
# -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "cause", "said"),
    [
        ("oom", "out_of_memory", "torch.OutOfMemoryError: CUDA out of memory"),
        pytest.param("kv_too_small", "out_of_memory", "ValueError: To serve at least one"),
        pytest.param("model_missing", "model_missing", "OSError: Repo id must"),
        ("silent", "died", "exit status 1"),
    ],
)
def test_a_server_that_dies_is_quoted(tmp_path: Path, words: str, cause: str, said: str) -> None:
    """The error has a cause, the server's own words and how it ended; it comes as soon as the process is gone."""
    began = time.monotonic()
    error = dies(tmp_path, words)
    assert error.cause == cause
    assert said in error.detail and "exit status 1" in error.detail
    assert "Engine core initialization failed" not in error.detail
    assert "\n" not in error.detail
    assert time.monotonic() - began < 90


def test_an_unknown_option_is_quoted(tmp_path: Path) -> None:
    """argparse's complaint names the option."""
    error = fails(tmp_path, options={"bogus_option": 3})
    assert error.cause == "bad_option"
    assert "unrecognized arguments: --bogus-option=3" in error.detail


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    """A command that cannot be executed is an error that names it, not a wait for the deadline."""
    error = fails(tmp_path, engine_changes={"command": ("/no/such/vllm", "serve")})
    assert error.cause == "died" and "/no/such/vllm" in error.detail


def test_an_option_of_ours_is_refused_before_anything_starts(tmp_path: Path) -> None:
    """A config cannot move the server to another address."""
    error = fails(tmp_path, options={"host": "0.0.0.0"})
    assert error.cause == "bad_option" and "host" in error.detail
    assert not (tmp_path / "log").exists()


def test_a_slow_server_is_waited_for(tmp_path: Path) -> None:
    """Slow is not dead: it is measured when it answers, and ready_s says how slow."""
    knobs = {"faults": [{"do": "slow_start", "s": 1.5}]}
    with server.launch(fake_start(knobs=knobs), tmp_path / "log", tmp_path / "boot") as live:
        assert live.ready_s >= 1.5


def test_a_server_that_hangs_is_given_up(tmp_path: Path) -> None:
    """After the deadline the error says how long it waited and what the server said last."""
    knobs = {"truth": str(tmp_path / "truth.jsonl"), "faults": [{"do": "hang_at_start"}]}
    changes = {"startup_timeout_s": 1.5, "stop_timeout_s": 1.0}
    error = fails(tmp_path, knobs=knobs, engine_changes=changes)
    assert error.cause == "not_ready"
    assert "not ready after 1.5 s" in error.detail and "model   fake-model" in error.detail


def test_an_unwritable_log_is_said(tmp_path: Path) -> None:
    """A log that cannot be opened is an error with its path, not a server without a log."""
    (tmp_path / "log").mkdir()
    error = fails(tmp_path)
    assert "log" in error.detail and "directory" in error.detail.lower()


# --- it does not stop
# ------------------------------------------------------------------------------------------


def test_a_server_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    """After stop_timeout_s it is killed with all that it started."""
    knobs = {"truth": str(tmp_path / "truth.jsonl"), "faults": [{"do": "ignore_sigterm"}]}
    start = fake_start(knobs=knobs, engine_changes={"stop_timeout_s": 0.5})
    with server.launch(start, tmp_path / "log", tmp_path / "boot") as live:
        assert live.alive()
        began = time.monotonic()
    assert 0.4 < time.monotonic() - began < 90
    assert survivors(tmp_path / "truth.jsonl") == []


def test_a_daemon_that_left_the_group_goes_too(tmp_path: Path) -> None:
    """A grandchild in a session of its own, its environment empty and deaf to SIGTERM, does not survive."""
    knobs = {"faults": [{"do": "grandchild"}]}
    with server.launch(fake_start(knobs=knobs), tmp_path / "log", tmp_path / "boot") as live:
        family = live.processes()
        daemons = [pid for pid in family if b"SIG_IGN" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        assert len(daemons) == 1
    assert running(family) == []


def test_a_dead_server_is_known_at_once_and_its_family_goes(tmp_path: Path) -> None:
    """SIGKILL to the server: alive() turns false, last words name the signal, its daemon is cleared away."""
    knobs = {"faults": [{"do": "grandchild"}]}
    with server.launch(fake_start(knobs=knobs), tmp_path / "log", tmp_path / "boot") as live:
        family = live.processes()
        os.kill(live.pid, signal.SIGKILL)
        until(lambda: not live.alive())
        assert "killed by signal 9" in live.last_words()
    assert running(family) == []


def test_an_error_in_the_block_stops_the_server(tmp_path: Path) -> None:
    """Whatever the measurement raises, the server is stopped and the error goes on."""
    with (
        pytest.raises(RuntimeError, match="ours"),
        server.launch(fake_start(), tmp_path / "log", tmp_path / "boot") as live,
    ):
        raise RuntimeError("ours")
    assert marked_by(live.session_id) == []


PROGRAM = """
import json, os, signal, sys, time
from pathlib import Path
from servelab import server
from servelab.spec import ServerStart
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # as in a terminal, also where the tests run under nohup
start, folder = ServerStart.from_json(json.loads(sys.argv[1])), Path(sys.argv[2])
with server.launch(start, folder / "log", folder / "boot") as live:
    (folder / "ready").write_text(json.dumps([live.session_id, sorted(live.processes())]))
    time.sleep(60)
"""


@pytest.fixture
def measuring(tmp_path: Path) -> Iterator[Callable[..., "tuple[subprocess.Popen[bytes], str, list[int]]"]]:
    """Starts a process that holds a server; gives it, the session's id and the family's pids."""
    children: list[subprocess.Popen[bytes]] = []

    def begin(*faults: str, **engine_changes: object) -> "tuple[subprocess.Popen[bytes], str, list[int]]":
        knobs = {"truth": str(tmp_path / "truth.jsonl"), "faults": [{"do": name} for name in faults]}
        start = fake_start(knobs=knobs, engine_changes=engine_changes)
        command = [sys.executable, "-c", PROGRAM, json.dumps(start.to_json()), str(tmp_path)]
        child = subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL)
        children.append(child)
        until(lambda: (tmp_path / "ready").exists() and (tmp_path / "ready").stat().st_size > 0, 30.0)
        session, family = json.loads((tmp_path / "ready").read_text())
        return child, session, family

    yield begin
    for child in children:
        if child.poll() is None:
            child.kill()
            child.wait()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_measuring_process_stops_the_server(
    measuring: Callable[..., "tuple[subprocess.Popen[bytes], str, list[int]]"], number: int, tmp_path: Path
) -> None:
    """Ctrl-C, SIGTERM and SIGHUP end the server in good order: it is asked, and nothing is left when we have gone."""
    child, _, family = measuring("grandchild")
    child.send_signal(number)
    child.wait(20)
    assert running(family) == []
    assert [line["how"] for line in truth.read(tmp_path / "truth.jsonl", "stop")] == ["SIGTERM"]
    assert not list(scratch_folder().iterdir())


def test_sigkill_of_the_measuring_process_leaves_nothing(
    measuring: Callable[..., "tuple[subprocess.Popen[bytes], str, list[int]]"],
) -> None:
    """The supervisor outlives us just long enough to stop a server that ignores SIGTERM, and its daemon."""
    child, _, family = measuring("grandchild", "ignore_sigterm", stop_timeout_s=0.5)
    child.kill()
    child.wait()
    until(lambda: running(family) == [])
    assert not list(scratch_folder().iterdir())


def test_sigkill_of_the_supervisor_leaves_nothing(tmp_path: Path) -> None:
    """Should the supervisor itself be killed, its server dies with it and what is left is found by its mark."""
    start = fake_start(engine_changes={"environment": {"SERVELAB_FAKE": json.dumps({"boot_ms": 5})}})
    with server.launch(start, tmp_path / "log", tmp_path / "boot") as live:
        assert live.life is not None
        live.life.supervisor.kill()
        until(lambda: not live.alive())
    assert marked_by(live.session_id) == []
    assert running([live.pid]) == []


# --- ports and foreign servers
# ---------------------------------------------------------------------------------


class Foreign(BaseHTTPRequestHandler):
    """An old server that is glad to answer anybody."""

    def do_GET(self) -> None:
        body = json.dumps({"object": "list", "data": [{"id": "fake-model"}, {"id": "<b>old</b>"}]}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing on the terminal."""


@pytest.fixture
def foreign() -> Iterator[int]:
    """The port of a server that is not ours."""
    old = ThreadingHTTPServer(("127.0.0.1", 0), Foreign)
    threading.Thread(target=old.serve_forever, daemon=True).start()
    yield old.server_address[1]
    old.shutdown()
    old.server_close()


def test_a_lost_race_for_the_port_is_run_again(
    tmp_path: Path, foreign: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The port was taken in between: the server dies, another port is tried, the foreign server is never measured."""
    free, ports = server_http.free_port, [foreign, foreign]
    monkeypatch.setattr(server_http, "free_port", lambda: ports.pop() if ports else free())
    with server.launch(fake_start(), tmp_path / "log", tmp_path / "boot") as live:
        assert live.target.base_url != f"http://127.0.0.1:{foreign}"
        assert server_http.served_names(live.target, 5.0) == [live.target.model]
    assert (tmp_path / "log").read_text().count("ddress already in use") == 2


def test_a_foreign_server_on_the_port_is_never_taken_for_ours(
    tmp_path: Path, foreign: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours hangs, a foreign one answers on its port: not ready, and the error says that another server answers."""
    monkeypatch.setattr(server_http, "free_port", lambda: foreign)
    knobs = {"faults": [{"do": "hang_at_start"}]}
    error = fails(tmp_path, knobs=knobs, engine_changes={"startup_timeout_s": 1.5, "stop_timeout_s": 1.0})
    assert error.cause == "not_ready"
    assert "another server answers on its port" in error.detail


# --- attach
# ----------------------------------------------------------------------------------------------------


def test_an_attached_server_is_only_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is not ours is asked who it is, never stopped; its key comes from the variable that the
    config names.
    """
    with server.launch(fake_start(), tmp_path / "log", tmp_path / "boot") as ours:
        monkeypatch.setenv("MY_KEY", ours.target.api_key)
        spec = engine_spec(ours.target.base_url + "/v1", "MY_KEY")
        start = fake_start()
        start = replace(start, engine=spec, model=replace(start.model, path=str(tmp_path)))
        with server.launch(start, tmp_path / "other", tmp_path / "none") as attached:
            assert attached.boot == "attached" and attached.pid == 0 and attached.argv == []
            assert attached.target.model == ours.target.model
            assert attached.alive() and attached.log_since(attached.log_mark()) == []
            assert attached.version == "0.31.0"
            session = attached.session_id
        with server.launch(start, tmp_path / "other", tmp_path / "none") as again:
            assert again.session_id == session
        misspelt = replace(start, model=replace(start.model, name="prod", path="prod-modell"))
        keyless = replace(start, engine=engine_spec(ours.target.base_url))
        for wrong, words in (
            (misspelt, f"serves {ours.target.model}, not prod-modell"),
            (keyless, "api_key_env"),
        ):
            with (
                pytest.raises(server.ServerStartError, match=words),
                server.launch(wrong, tmp_path / "other", tmp_path / "none"),
            ):
                pytest.fail("attached")
        assert ours.alive()
        assert server_http.served_names(ours.target, 5.0)
    assert not (tmp_path / "other").exists() and not (tmp_path / "none").exists()


def engine_spec(url: str, key: str = "") -> engine.EngineSpec:
    return fake_engine(kind="attach", url=url, api_key_env=key, command=())


@pytest.mark.parametrize("problem", ["nobody", "no_key", "other_model"])
def test_an_attached_server_that_is_not_what_it_should_be(tmp_path: Path, foreign: int, problem: str) -> None:
    """Nobody there, no key in the environment, other models: an error that says which."""
    url = f"http://127.0.0.1:{foreign if problem == 'other_model' else 9}"
    start = replace(fake_start(), engine=engine_spec(url, "NO_SUCH_VARIABLE" if problem == "no_key" else ""))
    if problem == "other_model":
        start = replace(start, model=replace(start.model, name="mine", path="mine"))
    with (
        pytest.raises(server.ServerStartError) as caught,
        server.launch(start, tmp_path / "l", tmp_path / "b"),
    ):
        pytest.fail("attached")
    assert caught.value.cause == "attach"
    expected = {"nobody": "no server at", "no_key": "NO_SUCH_VARIABLE", "other_model": "serves fake-model"}[
        problem
    ]
    assert expected in caught.value.detail


# --- the log
# ---------------------------------------------------------------------------------------------------


def test_a_log_without_end_fills_neither_disk_nor_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is cut at its limit with a mark, its end is kept, reading it is bounded, the server is not held up."""
    monkeypatch.setattr(server, "LOG_LIMIT_BYTES", 1 << 20)
    knobs = {"faults": [{"do": "log_flood", "mb": 8}]}
    log = tmp_path / "log"
    with server.launch(fake_start(knobs=knobs), log, tmp_path / "boot") as live:
        assert len("\n".join(live.log_since(0))) <= READ_LIMIT_BYTES
    text = log.read_text()
    assert log.stat().st_size < (1 << 20) + (80 << 10)
    assert "log cut here" in text and "bytes of this log left out" in text
    assert "shutdown triggered" in text.splitlines()[-1]


def test_reading_a_long_log_keeps_its_beginning_and_its_end(tmp_path: Path) -> None:
    """Of a log longer than the limit whole lines of both ends are read."""
    log = tmp_path / "log"
    log.write_text("".join(f"line {n}\n" for n in range(10_000)))
    lines = server.read_log(log, 0, 1000)
    assert lines[0] == "line 0" and lines[-1] == "line 9999"
    assert all(line.startswith("line ") for line in lines)
    assert sum(len(line) + 1 for line in lines) <= 1000


def test_secrets_are_hidden_in_the_log_even_when_cut_in_half(tmp_path: Path) -> None:
    """The key of a start, and any token the server gets, is hidden wherever a read happens to end."""
    from servelab.supervisor import Log

    secret = b"s3cret-k3y"
    text = (
        b"before " + secret + b" between\n" + secret + b" s3cret-other \xff\xe2 hf_abcdefghijklmnopqrst\nend"
    )
    for cut in range(len(text)):
        log = Log(tmp_path / f"log-{cut}", 1 << 20, [secret])
        log.write(text[:cut])
        log.write(text[cut:])
        log.close()
        shown = (tmp_path / f"log-{cut}").read_bytes()
        assert (
            shown
            == "before «hidden» between\n«hidden» s3cret-other ".encode()
            + b"\xff\xe2 \xc2\xabhidden\xc2\xbb\nend"
        )


def test_requests_of_ours_follow_no_redirect_and_no_proxy(
    foreign: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is asked of 127.0.0.1 goes there, whatever proxies the shell names."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    assert "fake-model" in server_http.served_names(Target(f"http://127.0.0.1:{foreign}", ""), 5.0)

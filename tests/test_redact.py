"""No secret gets into results, logs or reports."""

import pytest

from servelab import redact

HUB = "hf_" + "aB3" * 10


@pytest.mark.parametrize(
    "name", ["API_KEY", "HF_TOKEN", "--api-key", "DB_PASSWORD", "CLIENT_SECRET", "Authorization"]
)
def test_names_of_secrets_are_known(name: str) -> None:
    """Keys, tokens, passwords and their like are hidden by name."""
    assert redact.is_secret_name(name)


@pytest.mark.parametrize(
    "name", ["--max-num-batched-tokens", "input_tokens", "TOKENIZERS_PARALLELISM", "PATH", "--max-token-len",
             "long_prefill_token_threshold"]
)  # fmt: skip
def test_counts_of_tokens_are_no_secrets(name: str) -> None:
    """What merely counts tokens is shown."""
    assert not redact.is_secret_name(name)


@pytest.mark.parametrize("line", [f"error: token {HUB} is not accepted", f"url?t={HUB}", f'{{"x":"{HUB}"}}'])
def test_keys_are_hidden_wherever_they_stand(line: str) -> None:
    """A hub token in the middle of a server's words is replaced, the words around it stay."""
    shown = redact.text(line)
    assert HUB not in shown
    assert redact.HIDDEN in shown
    assert shown.startswith(line[:3])


def test_a_strangers_words_become_one_plain_line() -> None:
    """The key that was sent and what looks like one are hidden, control characters are spaces, length is bounded."""
    said = f"\x1b[31mno\nkey sesame-street\x00, {HUB}\ud800 " + "x" * 2000
    shown = redact.line(said, "sesame-street")
    assert "sesame" not in shown and HUB not in shown and shown.count(redact.HIDDEN) == 2
    assert shown.isprintable() and shown.startswith("[31mno key ")
    assert len(shown) == redact.LINE_CHARS and shown.endswith("x…")


def test_a_word_is_no_key() -> None:
    """A key of a letter or none hides nothing: the words around it stay readable."""
    assert redact.line("an error", "", "a") == "an error"


def test_command_line_hides_values_of_secret_options() -> None:
    """`--api-key X` and `--api-key=X` lose X, every other word stays."""
    words = ["python", "--api-key", "one", "--api-key=two", "--model=m", "--max-num-seqs=4", f"--note={HUB}"]
    shown = redact.argv(words)
    assert shown == [
        "python", "--api-key", redact.HIDDEN, f"--api-key={redact.HIDDEN}", "--model=m", "--max-num-seqs=4",
        f"--note={redact.HIDDEN}",
    ]  # fmt: skip


@pytest.mark.parametrize("before", ["", "--env=", "-e"])
def test_command_line_hides_values_of_secret_variables(before: str) -> None:
    """`-e API_KEY=X` of a container loses X; a name without a value, and other variables, stay."""
    words = ["docker", "-e", f"{before}X_API_KEY=sesame", "-e", "VLLM_API_KEY", "--env=OMP_NUM_THREADS=2"]
    shown = redact.argv(words)
    assert shown == [*words[:2], f"{before}X_API_KEY={redact.HIDDEN}", *words[3:]]


def test_environment_hides_by_name_and_by_value() -> None:
    """A secret is hidden if its variable's name or its own form tells."""
    shown = redact.environment({"VLLM_API_KEY": "x", "NOTE": HUB, "OMP_NUM_THREADS": "2"})
    assert shown == {"NOTE": redact.HIDDEN, "OMP_NUM_THREADS": "2", "VLLM_API_KEY": redact.HIDDEN}


def test_a_switch_is_no_secret() -> None:
    """`ssh -o StrictHostKeyChecking=no` says nothing that must be hidden."""
    command = ["ssh", "-o", "StrictHostKeyChecking=no", "host", "vllm"]
    assert redact.argv(command) == command

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
    "name", ["--max-num-batched-tokens", "input_tokens", "TOKENIZERS_PARALLELISM", "PATH", "--max-token-len"]
)
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


def test_command_line_hides_values_of_secret_options() -> None:
    """`--api-key X` and `--api-key=X` lose X, every other word stays."""
    words = ["python", "--api-key", "one", "--api-key=two", "--model=m", "--max-num-seqs=4", f"--note={HUB}"]
    shown = redact.argv(words)
    assert shown == [
        "python", "--api-key", redact.HIDDEN, f"--api-key={redact.HIDDEN}", "--model=m", "--max-num-seqs=4",
        f"--note={redact.HIDDEN}",
    ]  # fmt: skip


def test_environment_hides_by_name_and_by_value() -> None:
    """A secret is hidden if its variable's name or its own form tells."""
    shown = redact.environment({"VLLM_API_KEY": "x", "NOTE": HUB, "OMP_NUM_THREADS": "2"})
    assert shown == {"NOTE": redact.HIDDEN, "OMP_NUM_THREADS": "2", "VLLM_API_KEY": redact.HIDDEN}

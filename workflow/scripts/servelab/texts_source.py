"""The text that perplexity is measured on: always-there documentation, a file, or wikitext-2; and its fingerprint.

`pydoc_data.topics` is part of every Python, but its content is not the same in every version: two texts are
the same only if their digests are.
"""

import hashlib
import importlib
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from servelab import hub
from servelab.spec import ChangedInputError

PYDOC_TOPICS = "pydoc_data.topics"
WIKITEXT = "wikitext-2"
WIKITEXT_REPOSITORY = "Salesforce/wikitext"
WIKITEXT_FILE = "wikitext-2-raw-v1/test-00000-of-00001.parquet"
WIKITEXT_REVISION = (
    "b08601e04326c79dfdd32d625aee71d232d685c3"  # fixed, so that the text is the same everywhere
)
MAX_TEXT_BYTES = 64 << 20
MAX_SEGMENT_TOKENS = 4096  # a request's logprobs must not exhaust the server's memory, see perplexity.py
CHARACTERS_PER_TOKEN = (
    40  # no more of a segment is sent to the tokenizer: text that compresses better is no prose
)


class TextError(Exception):
    """A text that cannot be had or used; the message says which and why in one line."""


@dataclass(frozen=True)
class Text:
    """A text and what it is. digest: 32 hex digits of the SHA-256 of its UTF-8 bytes."""

    name: str
    content: str

    @property
    def digest(self) -> str:
        """Fingerprint of the content."""
        return hashlib.sha256(self.content.encode()).hexdigest()[:32]


def load(name: str, expected_digest: str = "") -> Text:
    """Read `pydoc_data.topics`, `wikitext-2` (its test split, from the hub or its cache) or a UTF-8 text file.

    expected_digest: what known_digest said when the config was read, "" to take the text as it is.
    Raises TextError: no such file, too large, not UTF-8, empty; the hub is not reachable. ChangedInputError: the
    content is another than expected.
    """
    if name == PYDOC_TOPICS:
        text = Text(name, _pydoc_topics())
    elif name == WIKITEXT:
        try:
            text = Text(
                name, parquet_text(hub.dataset_file(WIKITEXT_REPOSITORY, WIKITEXT_FILE, WIKITEXT_REVISION))
            )
        except hub.HubError as error:
            raise TextError(f"{name}: {error}") from error
    else:
        text = Text(Path(name).name, _file(Path(name)))
    if not text.content.strip():
        raise TextError(f"{name}: the text is empty")
    # wikitext-2 is known by its revision, which is fixed here.
    if expected_digest and name != WIKITEXT and text.digest != expected_digest:
        raise ChangedInputError(f"{name} has changed since the config was read")
    return text


def known_digest(name: str) -> str:
    """What stands for the text's content in a point's key, without using the network.

    A text file and `pydoc_data.topics`: the content's digest. wikitext-2: its repository's fixed revision.
    Raises TextError as `load` does.
    """
    return f"revision {WIKITEXT_REVISION}" if name == WIKITEXT else load(name).digest


def segments(content: str, count: int, tokens: int) -> list[str]:
    """`count` beginnings, evenly spread over the text, each starting after white space and long enough to be cut.

    tokens: how many tokens will be scored of each. Raises TextError where the text has too few characters: a
    token is at least one, so `count` × `tokens` are needed; whether they are enough the tokenizer tells.
    """
    part = len(content) // count
    if part < tokens:
        raise TextError(
            f"{len(content)} characters are too few for {count} segments of {tokens} tokens each; "
            "ask for fewer segments, shorter ones, or give a longer text"
        )
    cuts = [_word_start(content, index * part) for index in range(count)] + [len(content)]
    longest = tokens * CHARACTERS_PER_TOKEN
    return [content[start:end][:longest] for start, end in pairwise(cuts)]


def parquet_text(path: Path) -> str:
    """Join the rows of column `text` of a parquet file, as the corpus is usually scored. Raises TextError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        rows = pq.read_table(path, columns=["text"]).column("text").to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise TextError(f"{path.name}: no parquet file with a column «text» ({error})") from error
    return "\n\n".join(row for row in rows if row)


def _pydoc_topics() -> str:
    topics: dict[str, str] = importlib.import_module(PYDOC_TOPICS).topics
    return "\n\n".join(f"{name}\n{topics[name]}" for name in sorted(topics))


def _file(path: Path) -> str:
    try:
        size = path.stat().st_size
        if size > MAX_TEXT_BYTES:
            raise TextError(f"{path}: {size} bytes are more than a text may have ({MAX_TEXT_BYTES})")
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise TextError(f"{path}: not UTF-8 text (byte {error.start})") from error
    except OSError as error:
        raise TextError(f"{path}: {error.strerror or error}") from error


def _word_start(content: str, place: int) -> int:
    """The first place at or after `place` that follows white space; `place` itself if there is none near."""
    if place == 0:
        return 0
    for near in range(place, min(place + 200, len(content))):
        if content[near - 1].isspace():
            return near
    return place

"""Where an HTTP answer ends, whatever the boundaries at which its bytes arrive."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servelab.http_framing import Body, FramingError, parse_head


def head_of(*fields: str, status: str = "200 OK", version: str = "HTTP/1.1") -> bytes:
    return "\r\n".join([f"{version} {status}", *fields, "", ""]).encode()


def chunks(*parts: bytes, trailer: bytes = b"") -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n" + trailer + b"\r\n"


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted({cut % (len(data) + 1) for cut in cuts}), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges) if a < b]


def test_an_incomplete_head_is_no_head_yet() -> None:
    """Every beginning of a head but the whole gives None."""
    head = head_of("Content-Length: 5")
    assert all(parse_head(head[:n]) is None for n in range(len(head)))
    whole = parse_head(head + b"hello")
    assert whole is not None
    assert (whole.status, whole.length, whole.size, whole.keep_alive) == (200, 5, len(head), True)


@pytest.mark.parametrize(
    ("fields", "version", "keeps"),
    [
        (["Connection: close"], "HTTP/1.1", False),
        (["connection: Close"], "HTTP/1.1", False),
        ([], "HTTP/1.0", False),
        (["Connection: keep-alive"], "HTTP/1.0", True),
        ([], "HTTP/1.1", True),
    ],
)
def test_whether_a_connection_may_be_used_again(fields: list[str], version: str, keeps: bool) -> None:
    """The server's word about the connection is understood in either version of HTTP."""
    head = parse_head(head_of(*fields, version=version))
    assert head is not None and head.keep_alive is keeps


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"\x16\x03\x01\x02",
        head_of("Content-Length: x"),
        head_of(status="99999999999 OK"),
        head_of(status="1000 OK"),
        pytest.param(head_of("Content-Length: " + "9" * 5000), id="a length of 5000 digits"),
    ],
)
def test_what_is_no_http_is_refused(data: bytes) -> None:
    """An answer in another protocol is an error, not an endless wait."""
    with pytest.raises(FramingError):
        parse_head(data)


def test_an_endless_head_is_refused() -> None:
    """A head that never ends does not fill the memory."""
    with pytest.raises(FramingError):
        parse_head(b"HTTP/1.1 200 OK\r\nx: " + b"y" * (1 << 17))


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=8), st.lists(st.integers(0, 1000), max_size=12))
def test_chunked_bodies_come_out_whole_however_they_are_cut(parts: list[bytes], cuts: list[int]) -> None:
    """Any cutting of a chunked body gives its bytes, its end at the last byte, and counts what follows as excess."""
    head = parse_head(head_of("Transfer-Encoding: chunked"))
    assert head is not None
    wire = chunks(*parts, trailer=b"x-time: 3\r\n")
    body, out = Body(head), b""
    for piece in pieces(wire, cuts):
        assert not body.done
        out += body.feed(piece)
    assert body.done and out == b"".join(parts) and body.excess == 0
    body.feed(b"more")
    assert body.excess == 4


@given(st.binary(min_size=1, max_size=60), st.lists(st.integers(0, 100), max_size=6))
def test_bodies_of_known_length_end_there(data: bytes, cuts: list[int]) -> None:
    """A body with a length is done at its last byte."""
    head = parse_head(head_of(f"Content-Length: {len(data)}"))
    assert head is not None
    body = Body(head)
    assert b"".join(body.feed(piece) for piece in pieces(data, cuts)) == data
    assert body.done


def test_a_body_without_length_ends_with_the_connection_and_a_chunked_one_does_not() -> None:
    """The end of the connection completes one kind of body only."""
    plain, chunked = parse_head(head_of()), parse_head(head_of("Transfer-Encoding: chunked"))
    assert plain is not None and chunked is not None
    assert Body(plain).finish()
    cut = Body(chunked)
    cut.feed(b"5\r\nhel")
    assert not cut.finish()


@pytest.mark.parametrize("wire", [b"zz\r\n", b"-5\r\nhello\r\n", b"3\r\nhello\r\n0\r\n\r\n", b"1" * 5000])
def test_broken_chunks_are_refused(wire: bytes) -> None:
    """A chunk size that is none, or a chunk of another size than it says, is an error."""
    head = parse_head(head_of("Transfer-Encoding: chunked"))
    assert head is not None
    with pytest.raises(FramingError):
        Body(head).feed(wire)

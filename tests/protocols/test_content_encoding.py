import gzip
import tracemalloc
import zlib

import brotli
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from accordion.protocols.content_encoding import Decoder, decode_body
from tests.tiers import examples, first_quick

ENCODERS = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": brotli.compress,
    "zstd": lambda data: zstandard.ZstdCompressor().compress(data),
    "identity": bytes,
}


@pytest.mark.parametrize("encoding", ENCODERS)
@given(data=st.data())
@settings(max_examples=examples(40), deadline=None)
def test_an_encoded_body_is_read_wherever_it_is_cut(encoding: str, data: st.DataObject) -> None:
    plain = data.draw(st.binary(max_size=200)) * data.draw(st.integers(1, 3_000))
    packed = ENCODERS[encoding](plain)
    step = data.draw(st.integers(1, max(1, len(packed))))
    if len(packed) // step > 2_000:
        step = len(packed) // 2_000
    decoder = Decoder(encoding)
    assert b"".join(decoder.feed(packed[at : at + step]) for at in range(0, len(packed), step)) == plain
    assert decode_body(packed, encoding, len(plain)) == plain


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_an_encoded_body_of_several_members_is_read_to_its_end(encoding: str) -> None:
    packed = b"".join(ENCODERS[encoding](plain) for plain in (b"one ", b"two ", b"three"))
    assert decode_body(packed, encoding, 100) == b"one two three"
    decoder = Decoder(encoding)
    assert b"".join(decoder.feed(packed[at : at + 1]) for at in range(len(packed))) == b"one two three"


@pytest.mark.parametrize("encoding", first_quick(["gzip", "deflate", "br", "zstd"]))
def test_a_small_body_cannot_take_all_memory(encoding: str) -> None:
    packed = ENCODERS[encoding](bytes(100 << 20))
    tracemalloc.start()
    try:
        assert decode_body(packed, encoding, 1 << 20) is None
        assert tracemalloc.get_traced_memory()[1] < 40 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "compress", "gzip, br"])
def test_what_cannot_be_read_gives_nothing_and_no_error(encoding: str) -> None:
    decoder = Decoder(encoding)
    assert decoder.feed(b"no such thing " * 150) == b""
    assert not decoder.readable
    assert decoder.feed(b"more") == b""


def test_no_more_is_given_than_the_limit_allows() -> None:
    decoder = Decoder("gzip", limit=1_000)
    assert len(decoder.feed(gzip.compress(b"x" * 5_000))) <= 1_000
    assert not decoder.readable

"""How many pages a PDF has: as writers write them, and as nobody should."""

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.model.media_types import MOST_PAGES, count_pages
from tests.pdfs import packed_pdf, scanned_pdf


@pytest.mark.parametrize("pages", [1, 10, 321])
def test_pages_are_counted_as_they_stand_in_the_file_or_deflated(pages: int) -> None:
    assert (
        count_pages(scanned_pdf(pages))
        == count_pages(scanned_pdf(pages, tight=True))
        == count_pages(packed_pdf(pages))
        == pages
    )


def test_bookmarks_and_pages_that_were_changed_make_no_more_of_them() -> None:
    assert count_pages(scanned_pdf(7) + b"90 0 obj<</Type/Outlines/Count 300>>endobj\n") == 7
    changed = b"3 0 obj<</Type/Page/Parent 2 0 R/Annots[95 0 R]>>endobj\n"
    assert count_pages(scanned_pdf(7) + changed * 5) == 7


def test_a_count_that_lies_changes_little() -> None:
    assert count_pages(scanned_pdf(7, count=999_999)) == 7
    assert count_pages(b"%PDF-1.7\n<</Type/Pages/Count 999999>>") == 0
    assert count_pages(b"%PDF-1.7\n" + b"<</Type/Page>>" * 90) <= 13
    assert count_pages(b"%PDF-1.7\n" + b"<</Type/Page>>" * 90_000) == MOST_PAGES


def test_an_unreadable_pdf_has_an_unknown_number_of_pages() -> None:
    sealed = packed_pdf(7)
    start = sealed.index(b"stream\r\n") + 8
    assert count_pages(sealed[:start] + bytes(byte ^ 0x55 for byte in sealed[start:])) == 0
    assert count_pages(b"") == count_pages(b"%PDF-1.7\n") == count_pages(bytes(5_000)) == 0


def test_a_file_cut_off_or_with_broken_streams_has_the_pages_that_can_be_seen() -> None:
    assert count_pages(scanned_pdf(10)[:25_000]) == 5
    assert count_pages(b"/ObjStm>>stream\nno zlib" + packed_pdf(3)) == 3
    assert count_pages(b"/ObjStm and nothing behind it " * 3 + packed_pdf(3)) == 3


def test_a_stream_that_swells_is_left_soon() -> None:
    swelling = b"/ObjStm>>stream\n" + zlib.compress(b"<</Type/Pages>>" * 1_000_000)
    assert count_pages(swelling * 400 + scanned_pdf(2)) == 2


@given(
    st.lists(st.sampled_from([b"/Type", b" ", b"/Page", b"/Pages", b"/Count 9", b"/ObjStm", b">>stream\n", b"x\x9c"]))
)
def test_no_bytes_fail(pieces: list[bytes]) -> None:
    assert 0 <= count_pages(b"".join(pieces)) <= MOST_PAGES

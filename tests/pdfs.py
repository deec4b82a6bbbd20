"""PDFs as writers write them, with as many pages as a test needs."""

from __future__ import annotations

import random
import zlib


def scanned_pdf(pages: int, each: int = 5_000, count: int | None = None, tight: bool = False) -> bytes:
    """A scan: one picture a page. `tight`: without the blanks that may be left out."""
    noise, blank = random.Random(pages), b"" if tight else b" "
    out = b"%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj\n"
    kids = b" ".join(b"%d 0 R" % (3 + 2 * page) for page in range(pages))
    out += b"2 0 obj<</Type%s/Pages/Count %d/Kids[%s]>>endobj\n" % (blank, pages if count is None else count, kids)
    for page in range(pages):
        out += b"%d 0 obj<</Type%s/Page%s/Parent 2 0 R>>endobj\n" % (3 + 2 * page, blank, blank)
        out += b"%d 0 obj<</Length %d>>stream\n%s\nendstream endobj\n" % (4 + 2 * page, each, noise.randbytes(each))
    return out + b"trailer<</Root 1 0 R>>\n%%EOF"


def packed_pdf(pages: int, each: int = 50) -> bytes:
    """The same tree in object streams, as newer writers have it."""
    objects = [b"<</Type/Pages/Count %d/Kids[]>>" % pages, *[b"<</Type/Page/Parent 2 0 R>>"] * pages]
    out = b"%PDF-1.7\n"
    for at in range(0, len(objects), each):
        held = zlib.compress(b"1 0 2 31 " + b" ".join(objects[at : at + each]))
        out += b"9 0 obj<</Type/ObjStm/N %d/First 9/Filter/FlateDecode/Length %d>>stream\r\n" % (each, len(held))
        out += held + b"\nendstream endobj\n" + bytes(100 * each)
    return out + b"%%EOF"

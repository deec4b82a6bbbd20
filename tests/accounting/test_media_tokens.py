import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.accounting.media_tokens import ASSUMED_IMAGE, ASSUMED_PAGES, ASSUMED_SECONDS, media_rules
from accordion.model.conversation import Media
from accordion.model.media_types import detect_file_type

MODELS = [
    "gpt-4o",
    "gpt-4o-mini",
    "gpt-4.1-mini",
    "gpt-5",
    "gpt-5.2",
    "gpt-5.4",
    "o3",
    "o4-mini",
    "claude-sonnet-4-5",
    "claude-opus-4-7",
    "gemini-2.5-pro",
    "gemini-3-pro-preview",
    "some-model",
]


def image(model: str, width: int, height: int, detail: str = "") -> int:
    return media_rules(model).tokens(Media("image", "image/png", width=width, height=height, detail=detail))


@pytest.mark.parametrize(
    ("model", "width", "height", "detail", "tokens"),
    [
        ("gpt-4o", 1024, 1024, "high", 765),
        ("gpt-4o", 2048, 4096, "high", 1105),
        ("gpt-4o", 4096, 8192, "low", 85),
        ("gpt-4o", 512, 512, "auto", 255),
        ("gpt-4o", 1, 1, "high", 255),
        ("gpt-4o", 768, 2048, "high", 85 + 170 * 8),
        ("gpt-4o-2024-08-06", 1024, 1024, "", 765),
        ("openai/gpt-4o", 1024, 1024, "", 765),
        ("gpt-4.1", 1024, 1024, "", 765),
        ("gpt-4o-mini", 128, 64, "low", 2833),
        ("gpt-4o-mini", 128, 64, "high", 8500),
        ("o3", 128, 64, "high", 225),
        ("o1", 128, 64, "low", 75),
        ("gpt-5", 1024, 1024, "high", 630),
        ("gpt-5.1", 1024, 1024, "high", 630),
        ("gpt-4.1-mini", 1024, 1024, "", 1659),
        ("gpt-4.1-mini", 2400, 1800, "", 2353),
        ("gpt-4.1-nano", 1024, 1024, "", 2520),
        ("o4-mini", 1024, 1024, "", 1762),
        ("gpt-5-mini", 1024, 1024, "low", 1229),
        ("gpt-5-nano", 1024, 1024, "", 1536),
        ("gpt-5.2", 8000, 8000, "high", 1826),
        ("gpt-5.4", 1600, 1600, "high", 3000),
        ("gpt-5.4", 3200, 3200, "high", 3000),
        ("gpt-5.4", 3200, 3200, "original", 12_000),
        ("gpt-5.4", 50_000, 50_000, "original", 12_000),
        ("claude-sonnet-4-5", 1000, 1000, "", 1296),
        ("claude-sonnet-4-5", 200, 200, "", 64),
        ("claude-sonnet-4-5", 8000, 8000, "", 1521),
        ("claude-opus-4-7", 1000, 1000, "", 1296),
        ("claude-opus-4-7", 8000, 8000, "", 4761),
        ("claude-opus-4-20250514", 8000, 8000, "", 1521),
        ("us.anthropic.claude-sonnet-5-5-v1:0", 8000, 8000, "", 4761),
        ("gemini-2.5-pro", 384, 384, "", 258),
        ("gemini-2.5-pro", 960, 540, "", 6 * 258),
        ("gemini-2.5-flash", 3072, 3072, "", 16 * 258),
        ("gemini-3-pro-preview", 3072, 3072, "", 1120),
        ("gemini-3-pro-preview", 3072, 3072, "low", 280),
    ],
)
def test_an_image_costs_what_its_provider_says(model: str, width: int, height: int, detail: str, tokens: int) -> None:
    assert image(model, width, height, detail) == tokens


@pytest.mark.parametrize(("width", "height"), [(1568, 1568), (1920, 1080), (4000, 500), (640, 480), (300, 3000)])
def test_claudes_patches_agree_with_the_older_formula_by_area(width: int, height: int) -> None:
    shrink = min(1.0, 1568 / max(width, height))
    by_area = min(1600, width * height * shrink**2 / 750)
    assert image("claude-sonnet-4-5", width, height) == pytest.approx(by_area, rel=0.1)


@pytest.mark.parametrize("model", MODELS)
def test_an_unknown_size_counts_like_a_full_screen(model: str) -> None:
    assert media_rules(model).tokens(Media("image")) == image(model, *ASSUMED_IMAGE)


@given(
    st.sampled_from(MODELS),
    st.integers(1, 100_000),
    st.integers(1, 100_000),
    st.sampled_from(["", "low", "high", "auto", "original", "odd"]),
)
def test_any_image_costs_something_and_not_more_than_the_most(model: str, width: int, height: int, detail: str) -> None:
    tokens = image(model, width, height, detail)
    most = 10**9 if model.startswith("gemini-2") else {"gpt-4o-mini": 48_169}.get(model, 12_000)
    assert 0 < tokens <= most
    assert isinstance(tokens, int)


@pytest.mark.parametrize("model", MODELS)
def test_documents_count_by_their_pages(model: str) -> None:
    rules = media_rules(model)
    ten = rules.tokens(Media("file", "application/pdf", size=5_000_000, pages=10))
    assert ten == 10 * rules.page
    assert rules.tokens(Media("file", "application/pdf", size=600_000)) == ten
    assert rules.tokens(Media("file", "application/pdf", size=1)) == rules.page
    assert rules.tokens(Media("file")) == ASSUMED_PAGES * rules.page
    assert rules.tokens(Media("file", "application/pdf", size=10**12)) == 100 * rules.page


@pytest.mark.parametrize("media_type", ["text/plain", "text/csv", "application/json"])
def test_text_files_count_by_their_bytes(media_type: str) -> None:
    assert media_rules("gpt-4o").tokens(Media("file", media_type, size=40_001)) == 10_001


def test_sound_counts_by_its_length() -> None:
    rules = media_rules("gemini-2.5-pro")
    assert rules.tokens(Media("audio", "audio/wav", size=480_000)) == 10 * 32
    assert rules.tokens(Media("audio", "audio/x-wav", size=480_000)) == 10 * 32
    assert rules.tokens(Media("audio", "mp3", size=160_000)) == 10 * 32
    assert rules.tokens(Media("audio", "audio/ogg", size=40_000)) == 10 * 32
    assert rules.tokens(Media("audio")) == ASSUMED_SECONDS * 32
    assert media_rules("gpt-4o-audio-preview").tokens(Media("audio", "audio/wav", size=480_000)) == 100


def test_film_counts_by_its_length() -> None:
    assert media_rules("gemini-2.5-pro").tokens(Media("video", "video/mp4", size=2_500_000)) == 10 * 295
    assert media_rules("gemini-3-pro").tokens(Media("video")) == ASSUMED_SECONDS * 102


@pytest.mark.parametrize(
    ("model", "protocol_name", "family"),
    [
        ("gpt-4o", "messages", "openai"),
        ("claude-x", "chat", "anthropic"),
        ("ours", "messages", "anthropic"),
        ("ours", "chat", "other"),
        ("gemini-2.5-pro", "messages", "google"),
        ("gpt-oss-120b", "chat", "other"),
        ("codex-mini-latest", "responses", "openai"),
        ("", "", "other"),
    ],
)
def test_the_family_follows_the_name_then_the_protocol(model: str, protocol_name: str, family: str) -> None:
    assert media_rules(model, protocol_name).family == family


def test_rules_that_count_differently_have_different_names() -> None:
    by_name = {}
    for model in MODELS:
        rules = media_rules(model)
        assert by_name.setdefault(rules.name, rules) == rules
    assert len(by_name) == len(MODELS)


PNG = b"\x89PNG\r\n\x1a\n" + b"\x00\x00\x00\rIHDR" + (640).to_bytes(4, "big") + (480).to_bytes(4, "big")
GIF = b"GIF89a" + (640).to_bytes(2, "little") + (480).to_bytes(2, "little")
FRAME = b"\x00\x11\x08" + (480).to_bytes(2, "big") + (640).to_bytes(2, "big")
JFIF = b"\xff\xd8\xff\xe0\x00\x10JFIF" + bytes(10)
EXIF = b"\xff\xe1" + (5_002).to_bytes(2, "big") + bytes(5_000)
JPEG = JFIF + b"\xff\xc0" + FRAME
JPEG_WITH_METADATA = JFIF + EXIF * 3 + b"\xff\xff\xff\xc4\x00\x05abc" + b"\xff\xc2" + FRAME
LOSSY = b"RIFF----WEBPVP8 ----\x00\x00\x00\x9d\x01\x2a" + (640).to_bytes(2, "little") + (480).to_bytes(2, "little")
LOSSLESS = b"RIFF----WEBPVP8L----\x2f" + (639 | 479 << 14).to_bytes(4, "little")
EXTENDED = b"RIFF----WEBPVP8X----\x00\x00\x00\x00" + (639).to_bytes(3, "little") + (479).to_bytes(3, "little")
PICTURES = [
    (PNG, "image/png"),
    (GIF, "image/gif"),
    (GIF.replace(b"89a", b"87a"), "image/gif"),
    (JPEG, "image/jpeg"),
    (JPEG_WITH_METADATA, "image/jpeg"),
    (LOSSY, "image/webp"),
    (LOSSLESS, "image/webp"),
    (EXTENDED, "image/webp"),
]


@pytest.mark.parametrize(("data", "media_type"), PICTURES)
def test_a_picture_is_known_with_its_size_by_its_first_bytes(data: bytes, media_type: str) -> None:
    assert detect_file_type(data) == (media_type, 640, 480)
    assert detect_file_type(data + b"rest" * 100) == (media_type, 640, 480)


@pytest.mark.parametrize(("data", "media_type"), PICTURES)
def test_a_picture_cut_off_anywhere_has_its_size_or_none(data: bytes, media_type: str) -> None:
    for end in range(len(data)):
        found = detect_file_type(data[:end])
        assert found.media_type in ("", media_type)
        assert found.width in (0, 640)
        assert found.height in (0, 480)


def test_other_files_are_told_where_they_can_be() -> None:
    assert detect_file_type(b"%PDF-1.7\n") == ("application/pdf", 0, 0)
    assert detect_file_type(b"") == detect_file_type(b"hello") == detect_file_type(b"RIFF----WAVE") == ("", 0, 0)


@given(st.sampled_from([b"", b"\xff\xd8\xff", PNG[:8], b"GIF89a", b"RIFF----WEBPVP8X"]), st.binary(max_size=200))
def test_no_bytes_fail(start: bytes, rest: bytes) -> None:
    media_type, width, height = detect_file_type(start + rest)
    assert isinstance(media_type, str)
    assert width >= 0
    assert height >= 0


@pytest.mark.parametrize("filling", [b"\xff\xe1\x00\x02", b"\xff\xe1\x00\x00", b"\xff\xd0", b"\xff", b"\xff\x01\x00"])
def test_a_jpeg_made_to_keep_one_busy_is_left_soon(filling: bytes) -> None:
    assert detect_file_type(b"\xff\xd8\xff\xe0\x00\x02" + filling * 200_000 + b"\xff\xc0" + FRAME) == (
        "image/jpeg",
        0,
        0,
    )

"""Computes the tokens of images, documents, audio and video by the rules that providers publish.

If a size is unknown, a usual one is assumed, rather too large than too small; reported usage corrects the rest.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import ceil, sqrt
from typing import Literal

from accordion.model.conversation import Media, Opaque

Family = Literal["openai", "anthropic", "google", "other"]

ASSUMED_IMAGE = (1920, 1080)
"""Pixels of an image of unknown size: a full-screen picture, near the most that any model charges."""

BYTES_PER_PAGE = 60_000
ASSUMED_PAGES = 5
MOST_PAGES = 100
"""The most pages of a PDF that cannot be counted: Claude's limit for one request ("PDF support")."""
BYTES_PER_TEXT_TOKEN = 4
TEXT_TYPES = ("text/", "application/json", "application/xml", "application/x-ndjson", "application/yaml")

# Bytes for a second of audio, at the low end of usual rates, so that the length is rather over- than underestimated.
AUDIO_RATES = {
    "wav": 48_000,
    "pcm": 48_000,
    "flac": 60_000,
    "mp3": 16_000,
    "mpeg": 16_000,
    "aac": 16_000,
    "mp4": 16_000,
}
OTHER_AUDIO_RATE = 4_000  # opus and its containers
VIDEO_RATE = 250_000
ASSUMED_SECONDS = 60


@dataclass(frozen=True, slots=True)
class TileRule:
    """OpenAI's older rule, which charges for tiles.

    The image is shrunk to 2,048 by 2,048 pixels, then to 768 on the short side. It costs `base`, and `tile` for each
    square of 512 pixels.
    """

    base: int
    tile: int

    def tokens(self, width: int, height: int, detail: str) -> int:
        """Returns the tokens of one image. `low` costs the base alone; any other detail counts as `high`."""
        if detail == "low":
            return self.base
        scale = min(1.0, 2048 / max(width, height))
        scale *= min(1.0, 768 / (min(width, height) * scale))
        across, down = (max(1, ceil(round(side * scale, 3) / 512)) for side in (width, height))
        return self.base + self.tile * across * down


@dataclass(frozen=True, slots=True)
class PatchRule:
    """One token for each square of `side` pixels, at most `budget`; the image is shrunk to `edge` pixels first.

    `multiplier` is OpenAI's factor for its smaller models. `original` is the budget and edge of that detail level,
    if a model has it. `low` changes nothing: usage reported for these models shows no difference.
    """

    side: int
    budget: int
    edge: int
    multiplier: float = 1.0
    original: tuple[int, int] | None = None

    def tokens(self, width: int, height: int, detail: str) -> int:
        """Returns the tokens of one image."""
        budget, edge = self.original if detail == "original" and self.original else (self.budget, self.edge)
        scale = min(1.0, edge / max(width, height))
        across, down = width * scale / self.side, height * scale / self.side
        if ceil(across) * ceil(down) > budget:
            scale = sqrt(budget / (across * down))
            across, down = across * scale, down * scale
            scale = min(1.0, max(1, int(across)) / across, max(1, int(down)) / down)  # whole patches
            across, down = across * scale, down * scale
        patches = max(1, ceil(round(across, 2))) * max(1, ceil(round(down, 2)))
        return ceil(min(budget, patches) * self.multiplier)


@dataclass(frozen=True, slots=True)
class SquareRule:
    """Gemini up to 2.5: 258 tokens for a small image, else for each square of 768 pixels.

    The squares of smaller images are smaller.
    """

    each: int = 258

    def tokens(self, width: int, height: int, detail: str) -> int:
        """Returns the tokens of one image; `detail` has no effect."""
        if width <= 384 and height <= 384:
            return self.each
        unit = min(max(min(width, height) / 1.5, 256), 768)
        return self.each * ceil(width / unit) * ceil(height / unit)


@dataclass(frozen=True, slots=True)
class LevelRule:
    """Gemini 3 and later: a fixed number of tokens for each level of detail."""

    low: int = 280
    usual: int = 1120

    def tokens(self, width: int, height: int, detail: str) -> int:
        """Returns the tokens of one image, whatever its size."""
        return self.low if detail == "low" else self.usual


@dataclass(frozen=True, slots=True)
class MediaRules:
    """The rules of one kind of model.

    `page` are the tokens of a PDF page (its text and its picture), `audio` and `video` those of a second.
    """

    name: str
    family: Family
    image: TileRule | PatchRule | SquareRule | LevelRule
    page: int
    audio: int
    video: int

    def tokens(self, media: Media) -> int:
        """Returns the tokens of one part."""
        if media.kind == "image":
            is_size_known = media.width > 0 and media.height > 0
            width, height = (media.width, media.height) if is_size_known else ASSUMED_IMAGE
            return self.image.tokens(width, height, media.detail)
        if media.kind == "audio":
            rate = AUDIO_RATES.get(media.media_type.rsplit("/", 1)[-1].removeprefix("x-"), OTHER_AUDIO_RATE)
            return self.audio * _estimate_seconds(media.size, rate)
        if media.kind == "video":
            return self.video * _estimate_seconds(media.size, VIDEO_RATE)
        if media.size and media.media_type.startswith(TEXT_TYPES):
            return ceil(media.size / BYTES_PER_TEXT_TOKEN)
        return self.page * _count_pages(media)

    def unknown_tokens(self, part: Opaque) -> int:
        """Returns the tokens of a part of unknown type.

        Each base64 text in it counts as an image, the rest by its bytes.
        """
        rest = max(0, part.size - sum(part.runs))
        return ceil(rest / BYTES_PER_TEXT_TOKEN) + len(part.runs) * self.tokens(_UNKNOWN_IMAGE)


_UNKNOWN_IMAGE = Media("image")


def _estimate_seconds(size: int, rate: int) -> int:
    return ceil(size / rate) if size else ASSUMED_SECONDS


def _count_pages(media: Media) -> int:
    if media.pages:
        return media.pages
    return min(MOST_PAGES, ceil(media.size / BYTES_PER_PAGE)) if media.size else ASSUMED_PAGES


def _small_patches(multiplier: float) -> PatchRule:
    return PatchRule(32, 1536, 2048, multiplier)


# OpenAI, "Images and vision"; the multipliers of gpt-5-mini, gpt-5-nano and of gpt-5.2 and later as usage reports them.
_OPENAI_IMAGES: tuple[tuple[str, TileRule | PatchRule], ...] = (
    (r"gpt-4o-mini", TileRule(2833, 5667)),
    (r"gpt-4\.1-mini", _small_patches(1.62)),
    (r"gpt-4\.1-nano", _small_patches(2.46)),
    (r"o4-mini|codex-mini-latest", _small_patches(1.72)),
    (r"gpt-4|chatgpt-4|gpt-3", TileRule(85, 170)),
    (r"\bo[13]\b", TileRule(75, 150)),
    (r"computer-use", TileRule(65, 129)),
    (r"gpt-5-nano", _small_patches(1.5)),
    (r"gpt-5-mini|gpt-5\.[23]|gpt-5\.4-(?:mini|nano)", _small_patches(1.2)),
    (r"gpt-5(?:\.1)?(?![.\d])", TileRule(70, 140)),
    (r"gpt-|codex|chat-latest", PatchRule(32, 2500, 2048, multiplier=1.2, original=(10_000, 6000))),
)
_OPENAI_RULES = tuple(
    (re.compile(pattern), MediaRules(f"openai-{index}", "openai", image, page=1_800, audio=10, video=263))
    for index, (pattern, image) in enumerate(_OPENAI_IMAGES)
)

# Anthropic, "Vision": patches of 28 pixels; 1,568 at most, 4,784 from version 4.7 on. A page is both text and picture.
_CLAUDE = MediaRules("claude", "anthropic", PatchRule(28, 1568, 1568), page=2_800, audio=25, video=263)
_CLAUDE_SHARP = MediaRules("claude-sharp", "anthropic", PatchRule(28, 4784, 2576), page=3_200, audio=25, video=263)
_CLAUDE_VERSION = re.compile(r"claude-[a-z]+-(\d{1,2})(?:[-.](\d{1,2}))?(?!\d)")

# Gemini API, "Understand and count tokens" and "Media resolution".
_GEMINI = MediaRules("gemini", "google", SquareRule(), page=258, audio=32, video=295)
_GEMINI_3 = MediaRules("gemini-3", "google", LevelRule(), page=1_120, audio=32, video=102)
_OTHER = MediaRules("other", "other", PatchRule(28, 4096, 4096), page=1_800, audio=25, video=263)


def media_rules(model: str, protocol_name: str = "") -> MediaRules:
    """Returns the rules of a model.

    If its name matches no known pattern, the protocol `messages` implies Claude.
    """
    name = model.lower().rsplit("/", 1)[-1]
    if "claude" in name or (protocol_name == "messages" and not _is_other(name)):
        version = _CLAUDE_VERSION.search(name)
        is_sharp = version is not None and (int(version[1]), int(version[2] or 0)) >= (4, 7)
        return _CLAUDE_SHARP if is_sharp else _CLAUDE
    if "gemini" in name:
        return _GEMINI if re.search(r"gemini-(?:[12]\b|pro|flash)", name) else _GEMINI_3
    if "gpt-oss" in name:
        return _OTHER
    return next((rules for pattern, rules in _OPENAI_RULES if pattern.search(name)), _OTHER)


def _is_other(name: str) -> bool:
    return "gemini" in name or any(pattern.search(name) for pattern, _ in _OPENAI_RULES)

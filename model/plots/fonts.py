"""Fonts that have the characters of a plot's labels: matplotlib's own, and what is installed beside it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from matplotlib import font_manager
from matplotlib.ft2font import FT2Font

OWN = "DejaVu Sans"  # comes with matplotlib
ADVICE = (
    "install a font that has them and draw again, on Debian: apt-get install fonts-noto-cjk (Chinese, Japanese, "
    "Korean), fonts-noto-core (other scripts) or fonts-symbola (symbols, emoji)."
)


def families_for(texts: Iterable[str], files: list[str] | None = None) -> tuple[list[str], set[str]]:
    """Font families that draw these texts together, and the characters that none of them has.

    `files` are the fonts to look through, those of the system by default. They are read only if matplotlib's own font
    lacks something.
    """
    own = FT2Font(font_manager.findfont(OWN)).get_charmap()
    missing = {character for text in texts for character in text if ord(character) not in own}
    families = [OWN]
    if not missing:
        return families, missing
    charmaps = {file: _charmap(file) for file in sorted(font_manager.findSystemFonts() if files is None else files)}
    while missing and charmaps:
        best = max(charmaps, key=lambda file: (len(missing & charmaps[file]), _is_regular(file)))
        if not missing & charmaps[best]:
            break
        font_manager.fontManager.addfont(best)
        families.append(font_manager.FontProperties(fname=best).get_name())
        missing -= charmaps.pop(best)
    return families, missing


def readable(text: str, missing: set[str]) -> str:
    """The text, with the code point of each character that no font has: 'U+5929 U+6C14'."""
    if not missing.intersection(text):
        return text
    return " ".join(f"U+{ord(character):04X}" if character in missing else character for character in text)


def note(missing: set[str]) -> str:
    count = len(missing)
    what = "1 character of the labels is" if count == 1 else f"{count} characters of the labels are"
    return f"{what} in no font here, so these labels are code points; {ADVICE}"


def _charmap(file: str) -> set[str]:
    """The characters of a font that matplotlib can draw: none of a bitmap font, or of a file that is no font."""
    try:
        font = FT2Font(file)
        return {chr(code) for code in font.get_charmap()} if font.scalable else set()
    except (OSError, RuntimeError):
        return set()


def _is_regular(file: str) -> bool:
    name = Path(file).stem.lower()
    return not any(style in name for style in ("bold", "italic", "oblique", "black", "light", "thin", "mono"))

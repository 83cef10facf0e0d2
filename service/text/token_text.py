"""A token as readable text: `Ġthe` and `▁the` become " the", part of a character its bytes, `<0xE6><0xB0>`."""

from __future__ import annotations

import codecs

SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # what SentencePiece writes for a space
WHOLE_OR_BYTES = "attendant-bytes"  # the codec error handler registered below


def token_text(token: str, byte_level: bool) -> str:
    if byte_level and all(character in BYTES for character in token):
        return bytes(BYTES[character] for character in token).decode("utf-8", WHOLE_OR_BYTES)
    return token.replace(SPACE, " ")


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's byte-level alphabet, character to byte: printable bytes as themselves, others as U+0100 and up."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}


BYTES = _byte_alphabet()


def _name_bytes(error: UnicodeError) -> tuple[str, int]:
    """Codec error handler: bytes that are no whole character, as SentencePiece names them (`<0xE6>`)."""
    assert isinstance(error, UnicodeDecodeError)
    return "".join(f"<0x{byte:02X}>" for byte in error.object[error.start : error.end]), error.end


codecs.register_error(WHOLE_OR_BYTES, _name_bytes)

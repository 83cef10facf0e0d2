"""What a token stands for, readable: `Ġthe` and `▁the` are " the", half a character is its bytes, `<0xE6><0xB0>`."""

from __future__ import annotations

import codecs

SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # what SentencePiece writes for a space
WHOLE_OR_BYTES = "attendant-bytes"  # the error handler below


def token_text(token: str, byte_level: bool) -> str:
    if byte_level and all(character in BYTES for character in token):
        return bytes(BYTES[character] for character in token).decode("utf-8", WHOLE_OR_BYTES)
    return token.replace(SPACE, " ")


def _byte_alphabet() -> dict[str, int]:
    """The characters that a byte-level BPE writes for bytes: printable ones for themselves, those from 256 on else."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}


BYTES = _byte_alphabet()


def _name_bytes(error: UnicodeError) -> tuple[str, int]:
    """For bytes that are no whole character: SentencePiece's names of them."""
    assert isinstance(error, UnicodeDecodeError)
    return "".join(f"<0x{byte:02X}>" for byte in error.object[error.start : error.end]), error.end


codecs.register_error(WHOLE_OR_BYTES, _name_bytes)

"""GPT-2's byte-level alphabet, in which byte-level BPE writes its tokens."""

from __future__ import annotations


def _byte_of_character() -> dict[str, int]:
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}


BYTES = _byte_of_character()  # character: byte; a printable byte is its own character, others are U+0100 and up


def to_bytes(token: str) -> bytes | None:
    """The bytes that a token stands for; None if a character is not of the alphabet."""
    if not all(character in BYTES for character in token):
        return None
    return bytes(BYTES[character] for character in token)

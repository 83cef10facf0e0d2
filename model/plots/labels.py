"""Tokens as labels of a plot: their text, with spaces made visible, or their bytes if these are no whole characters."""

from __future__ import annotations

from attendant.model.text.tokenizer import BOS, EOS, PAD, UNK, Tokenizer

NAMES = {PAD: "<padding>", UNK: "<unknown>", BOS: "<start>", EOS: "<end>"}
# Visible symbols for SentencePiece's space and for white space.
VISIBLE = {"▁": "␣", " ": "␣", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def label(tokenizer: Tokenizer, index: int) -> str:
    """'Ġtian' of byte-level BPE is '␣tian', 'å¤©' is '天', and its first two bytes are '<E5 A4>'."""
    if index in NAMES:
        return NAMES[index]
    token = tokenizer.token(index)
    if tokenizer.byte_level and all(character in BYTES for character in token):
        raw = bytes(BYTES[character] for character in token)
        try:
            token = raw.decode()
        except UnicodeDecodeError:
            return f"<{raw.hex(' ').upper()}>"
    return "".join(VISIBLE.get(character, character) for character in token)


def _byte_alphabet() -> dict[str, int]:
    """{character: byte} of byte-level BPE: a printable byte is its own character, the others are chr(256) and on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}


BYTES = _byte_alphabet()

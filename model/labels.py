"""What tokens stand for, as labels of a plot: text, with spaces made visible and half characters as their bytes."""

from __future__ import annotations

from tokenizers import decoders

from model.tokenizer import BOS, EOS, PAD, UNK, Tokenizer

NAMES = {PAD: "<padding>", UNK: "<unknown>", BOS: "<start>", EOS: "<end>"}
# SentencePiece's space and those of texts, each as something that can be seen.
VISIBLE = {"▁": "␣", " ": "␣", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def label(tokenizer: Tokenizer, index: int) -> str:
    """'Ġtian' of byte-level BPE is '␣tian', 'å¤©' is '天', and its first two bytes are '<E5 A4>'."""
    if index in NAMES:
        return NAMES[index]
    token = tokenizer.token(index)
    if isinstance(tokenizer.decoder, decoders.ByteLevel) and all(character in BYTES for character in token):
        raw = bytes(BYTES[character] for character in token)
        try:
            token = raw.decode()
        except UnicodeDecodeError:
            return f"<{raw.hex(' ').upper()}>"
    return "".join(VISIBLE.get(character, character) for character in token)


def _byte_alphabet() -> dict[str, int]:
    """The characters that a byte-level BPE writes for bytes: printable ones for themselves, others from 256 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}


BYTES = _byte_alphabet()

"""Changed copies of inputs, from a seeded generator: bits, bytes, slices, lengths, words of the format."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence

NUMBERS = [b"0", b"-1", b"1", b"255", b"256", b"65536", b"2147483647", b"2147483648", b"-2147483649", b"4294967296"]
NUMBERS += [
    b"9007199254740993",
    b"9223372036854775807",
    b"9223372036854775808",
    b"18446744073709551616",
    b"1e308",
    b"1e999",
]
NUMBERS += [b"-0", b"NaN", b"Infinity", b"1e-400", b"0.1", b"00", b"0x10", b"1_0", b"9" * 400]
BYTES = [
    b"\0",
    b"\xff",
    b"\x80",
    b"\r\n",
    b"\n",
    b"\r",
    b"\t",
    b" ",
    b'"',
    b"\\",
    b"{",
    b"}",
    b"[",
    b"]",
    b":",
    b",",
    b"\xed\xa0\x80",
]
STEPS = (1, 1, 1, 2, 3, 6)  # changes of one input
LARGEST = 2**18  # bytes: a repeated slice does not grow without bound

Change = Callable[[random.Random, bytearray, Sequence[bytes]], None]


def mutated(rng: random.Random, data: bytes, words: Sequence[bytes] = (), others: Sequence[bytes] = ()) -> bytes:
    """`data` after a few changes; `words` are put in, and pieces of `others` join it."""
    changed = bytearray(data)
    for _ in range(rng.choice(STEPS)):
        if others and rng.random() < 0.1:
            _splice(rng, changed, rng.choice(others))
        else:
            rng.choice(CHANGES)(rng, changed, words)
    return bytes(changed[:LARGEST])


def _place(rng: random.Random, data: bytearray) -> int:
    return rng.randrange(len(data) + 1)


def _slice(rng: random.Random, data: bytearray) -> slice:
    start = _place(rng, data)
    return slice(start, start + rng.choice((1, 1, 2, 4, 8, 32, 200)))


def _flip(rng: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _byte(rng: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] = rng.randrange(256)


def _insert(rng: random.Random, data: bytearray, words: Sequence[bytes]) -> None:
    at = _place(rng, data)
    data[at:at] = rng.choice([*words, *NUMBERS, *BYTES])


def _replace(rng: random.Random, data: bytearray, words: Sequence[bytes]) -> None:
    data[_slice(rng, data)] = rng.choice([*words, *NUMBERS, *BYTES])


def _delete(rng: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    del data[_slice(rng, data)]


def _repeat(rng: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    found = _slice(rng, data)
    data[found.start : found.start] = data[found] * rng.choice((1, 2, 10, 100))


def _cut(rng: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    del data[_place(rng, data) :]


def _move(rng: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    found = _slice(rng, data)
    piece = data[found]
    del data[found]
    at = _place(rng, data)
    data[at:at] = piece


def _length(rng: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    """An integer as binary formats have it, at one of its edges."""
    kind = rng.choice("bBhHiIqQ")
    size = struct.calcsize(kind)
    value = rng.choice((0, 1, 2 ** (8 * size - 1) - 1, 2 ** (8 * size - 1), 2 ** (8 * size) - 1)) & (
        2 ** (8 * size) - 1
    )
    at = _place(rng, data)
    data[at : at + size] = value.to_bytes(size, "little")


def _digits(rng: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    """A number in the text becomes another one."""
    places = [i for i, byte in enumerate(data[:LARGEST]) if 48 <= byte <= 57]
    if places:
        start = stop = rng.choice(places)
        while stop < len(data) and 48 <= data[stop] <= 57:
            stop += 1
        data[start:stop] = rng.choice(NUMBERS)


def _splice(rng: random.Random, data: bytearray, other: bytes) -> None:
    start = rng.randrange(len(other) + 1)
    at = _place(rng, data)
    data[at:at] = other[start : start + rng.choice((4, 30, 300))]


CHANGES: list[Change] = [_flip, _byte, _insert, _replace, _delete, _repeat, _cut, _move, _length, _digits]

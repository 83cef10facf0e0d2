"""SplitMix64 (Steele, Lea and Flood, 2014): a random number that depends on nothing but a 64-bit state."""

from __future__ import annotations

STEP = 0x9E3779B97F4A7C15  # 2^64 / golden ratio, odd: from one state of the generator to the next
_MASK = 2**64 - 1


def splitmix64(state: int) -> int:
    """The 64-bit number that the generator yields from this state; its next state is `state + STEP`."""
    value = (state + STEP) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)

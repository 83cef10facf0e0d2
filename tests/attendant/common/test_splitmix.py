from __future__ import annotations

from attendant.common.splitmix import STEP, splitmix64


def test_numbers_are_those_of_the_reference_implementation() -> None:
    seed = 1234567
    found = [splitmix64(seed + place * STEP) for place in range(3)]
    assert found == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_states_are_taken_modulo_two_to_the_64() -> None:
    assert splitmix64(2**64 + 5) == splitmix64(5)
    assert splitmix64(-1) == splitmix64(2**64 - 1)

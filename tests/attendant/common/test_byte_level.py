from __future__ import annotations

from tokenizers import pre_tokenizers

from attendant.common.byte_level import BYTES, to_bytes


def test_the_alphabet_is_the_one_of_tokenizers() -> None:
    assert set(BYTES) == set(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(BYTES.values()) == list(range(256))


def test_tokens_stand_for_the_bytes_that_tokenizers_wrote() -> None:
    text = "a b\n天 é~"
    cut = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(text)
    assert to_bytes("".join(token for token, _ in cut)) == text.encode()


def test_a_token_with_another_character_stands_for_no_bytes() -> None:
    assert to_bytes("a天") is None
    assert to_bytes("") == b""

"""Keys with names and limits of names are read, and what cannot be meant is refused."""

from __future__ import annotations

import pytest

from attendant.service.client_keys import ClientLimit, is_key, read_limits, split_key
from attendant.service.settings import Settings, SettingsError, read_settings


@pytest.mark.parametrize(
    ("entry", "name", "key"),
    [("plain", "", "plain"), ("alice:secret", "alice", "secret"), ("alice:with:colon", "alice", "with:colon")],
)
def test_the_first_colon_ends_the_name(entry: str, name: str, key: str) -> None:
    assert is_key(entry)
    assert split_key(entry) == (name, key)


@pytest.mark.parametrize("entry", ["", "alice:", ":key", "a b:key", "alice:k y", "é:key", "x" * 41 + ":key"])
def test_what_is_no_key_is_refused_and_not_shown(entry: str) -> None:
    assert not is_key(entry)
    with pytest.raises(SettingsError, match="takes keys of visible ASCII") as caught:
        Settings(api_keys=(entry,))
    assert not entry or entry not in str(caught.value)


def test_limits_are_read() -> None:
    assert read_limits("alice:60:0, *:10:5000") == (ClientLimit("alice", 60, 0), ClientLimit("*", 10, 5000))


@pytest.mark.parametrize("text", ["alice", "alice:1", "alice:1:2:3", "alice:-1:2", "alice:x:2", ":1:2", "a:1:2,a:3:4"])
def test_a_limit_of_another_form_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(SettingsError, match=r"--client-limits takes NAME:REQUESTS:TOKENS, comma-separated"):
        read_settings({"client_limits": text, "api_keys": "alice:key"}, {})


@pytest.mark.parametrize(("keys", "limits"), [("bob:key", "alice:1:0"), ("key", "alice:1:0"), ("", "*:1:0")])
def test_a_limit_of_a_name_that_no_key_has_is_refused(keys: str, limits: str) -> None:
    flags = {"client_limits": limits, **({"api_keys": keys} if keys else {})}
    with pytest.raises(SettingsError, match="no key has this name") as caught:
        read_settings(flags, {})
    assert caught.value.exit_code == 2


def test_the_limit_of_all_others_needs_any_key() -> None:
    assert read_settings({"client_limits": "*:1:0", "api_keys": "plain"}, {}).client_limits[0].requests == 1

"""Settings: flags over variables over defaults, and every mistake named at once."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from attendant.service.settings import Settings, SettingsError, flag, read_settings, takes, variable

OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"


def test_defaults_are_within_their_ranges() -> None:
    assert read_settings({}, {}) == Settings()


def test_a_flag_wins_over_a_variable_and_a_variable_over_the_default() -> None:
    environment = {"ATTENDANT_PORT": "9000", "ATTENDANT_HOST": "0.0.0.0"}
    found = read_settings({"port": "9001"}, environment)
    assert (found.port, found.host, found.max_inputs) == (9001, "0.0.0.0", Settings().max_inputs)


def test_every_type_is_read() -> None:
    found = read_settings(
        {"bundle": "some/where", "log_texts": "yes", "grace_seconds": "0.5", "api_keys": "one, two"}, {}
    )
    assert found.bundle == Path("some/where")
    assert (found.log_texts, found.grace_seconds, found.api_keys) == (True, 0.5, ("one", "two"))


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("port", "http", r"PORT takes a whole number from 0 to 65535, not 'http'\."),
        ("port", "65536", r"PORT takes a whole number from 0 to 65535, not 65536\."),
        ("port", "", r"PORT takes a whole number"),
        ("threads", "1.5", r"THREADS takes a whole number from 0 to 1024, not '1\.5'"),
        ("grace_seconds", "nan", r"GRACE_SECONDS takes a number from 0 to 86400, not nan"),
        ("grace_seconds", "inf", r"GRACE_SECONDS takes a number from 0 to 86400, not inf"),
        ("provider", "tpu", r"PROVIDER takes one of auto, cpu, cuda, not 'tpu'"),
        ("log_texts", "maybe", r"LOG_TEXTS takes true or false, not 'maybe'"),
        ("host", " ", r"HOST takes a text that is not empty"),
        ("api_keys", "one,,two", r"API_KEYS takes keys of visible ASCII characters"),
    ],
)
def test_a_bad_value_is_a_sentence_that_names_the_variable(name: str, value: str, sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence) as caught:
        read_settings({}, {variable(name): value})
    assert caught.value.exit_code == 1


def test_a_bad_flag_is_named_as_a_flag_and_is_bad_usage() -> None:
    with pytest.raises(SettingsError, match=r"--max-body-bytes takes") as caught:
        read_settings({"max_body_bytes": "0"}, {"ATTENDANT_MAX_BODY_BYTES": "5000"})
    assert caught.value.exit_code == 2


def test_an_unknown_variable_is_refused_and_the_nearest_named() -> None:
    with pytest.raises(SettingsError, match=r"ATTENDANT_PROT: unknown setting; did you mean ATTENDANT_PORT\?"):
        read_settings({}, {"ATTENDANT_PROT": "1"})
    with pytest.raises(SettingsError, match=r"ATTENDANT_XYZZY: unknown setting; attendant serve --help"):
        read_settings({}, {"ATTENDANT_XYZZY": "1"})


def test_other_programs_variables_and_the_commands_own_are_left_alone() -> None:
    read_settings({}, {"PATH": "/bin", "ATTENDANTS": "3", "ATTENDANT_TRACEBACK": "1"})


def test_all_problems_are_reported_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        read_settings({"port": "x"}, {"ATTENDANT_HOSTS": "h", "ATTENDANT_THREADS": "-1"})
    assert len(caught.value.sentences) == 3


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"bundle": "a", "models": "b"}, r"--bundle and --models are both given; put the bundle among the models"),
        ({"load": "lazy"}, r"--load is for several models; give their directory with --models"),
        ({"max_loaded": "2"}, r"--max-loaded is for several models"),
        ({"default_model": "a"}, r"--default-model is for several models"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence) as caught:
        read_settings(given, {})
    assert (caught.value.exit_code, len(caught.value.sentences)) == (2, 1)
    with pytest.raises(SettingsError, match=sentence) as caught:
        read_settings({}, {variable(name): value for name, value in given.items()})
    assert caught.value.exit_code == 1


def test_settings_of_several_models_are_read() -> None:
    given = {"models": "some/where", "default_model": "a", "load": "lazy", "max_loaded": "2"}
    found = read_settings(given, {})
    assert (found.models, found.default_model, found.load, found.max_loaded) == (Path("some/where"), "a", "lazy", 2)
    with pytest.raises(SettingsError, match=r"--default-model takes a text that is not empty"):
        read_settings({**given, "default_model": " "}, {})


def test_a_key_is_never_shown() -> None:
    assert "hush" not in repr(Settings(api_keys=("hush",), admin_keys=("hush",)))
    for name in ("ATTENDANT_API_KEYS", "ATTENDANT_ADMIN_KEYS"):
        with pytest.raises(SettingsError) as caught:
            read_settings({}, {name: "hush hush"})
        assert "hush" not in str(caught.value)


def test_the_documentation_lists_every_setting_with_its_default_and_range() -> None:
    lines = [line for line in OPERATIONS.read_text(encoding="utf-8").splitlines() if line.startswith("| `--")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert rows == [
        [f"`{flag(f.name)}`", shown(f.default), f.metadata["unit"], takes(f), f.metadata["about"]]
        for f in fields(Settings)
    ]


def shown(default: object) -> str:
    if default is None or default == ():
        return ""
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def test_by_default_a_stop_waits_as_long_as_a_request_may_take() -> None:
    assert Settings().grace_seconds * 1000 >= Settings().timeout_ms

"""Downloads through `huggingface_hub`'s own client: whole, or refused with a sentence and gone on with later."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from attendant.hub import client
from attendant.hub.client import list_files
from attendant.hub.download import download, downloaded
from attendant.hub.errors import HubError
from tests.hub.conftest import SECRET
from tests.hub.loopback import NAME, Hub
from tests.support.children import started
from tests.support.serving import wait_for

WEIGHTS = "model.safetensors"
FILES = {
    "config.json": b'{"model_type": "marian"}',
    "vocab.json": b'{"</s>": 0}',
    "source.spm": b"spm" * 1000,
    WEIGHTS: bytes(range(256)) * 500,
    "pytorch_model.bin": b"pickle",
    "tf_model.h5": b"tensorflow",
    "README.md": b"read me",
}


@pytest.fixture(autouse=True)
def listed(hub: Hub) -> None:
    hub.commit(dict(FILES))


def get(work: Path, revision: str = "main") -> dict[str, bytes]:
    """What is downloaded, by name."""
    directory = download(NAME, list_files(NAME, revision), work, lambda _: None)
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def needed(files: dict[str, bytes] = FILES) -> dict[str, bytes]:
    return {name: files[name] for name in ("config.json", "vocab.json", "source.spm", WEIGHTS)}


def test_only_what_import_needs_is_downloaded_and_safetensors_before_pickles(hub: Hub, tmp_path: Path) -> None:
    assert get(tmp_path / "work") == needed()
    assert set(hub.contents()) == set(needed())


def test_shards_are_those_that_the_index_names(hub: Hub, tmp_path: Path) -> None:
    shards = {f"model-0000{i}-of-00002.safetensors": bytes([i]) * 99 for i in (1, 2)}
    index = json.dumps({"weight_map": {f"w{i}": name for i, name in enumerate(shards)}}).encode()
    files = {"config.json": FILES["config.json"], f"{WEIGHTS}.index.json": index, **shards}
    hub.commit({**files, "model-00003-of-00003.safetensors": b"of no index", "pytorch_model.bin": b"pickle"})
    assert get(tmp_path / "work") == files


def test_a_token_goes_to_the_hub_and_not_to_where_it_redirects(hub: Hub, tmp_path: Path) -> None:
    hub.token = SECRET
    assert get(tmp_path / "work") == needed()
    by_host = {(asked.host, asked.token) for asked in hub.asked}
    assert by_host == {("127.0.0.1", f"Bearer {SECRET}"), ("localhost", None)}


def test_content_that_breaks_off_is_gone_on_with(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)
    hub.cut = 70_000
    assert get(tmp_path / "work") == needed()
    assert [asked.range for asked in hub.asked if asked.path.endswith(WEIGHTS) and asked.range] == 2 * ["bytes=70000-"]


@pytest.mark.parametrize("ranges", [True, False], ids=["ranges", "no ranges"])
def test_a_part_that_an_earlier_process_left_is_gone_on_with(hub: Hub, tmp_path: Path, ranges: bool) -> None:
    hub.ranges = ranges
    about = list_files(NAME, "main").files[WEIGHTS]
    (tmp_path / "work" / "parts").mkdir(parents=True)
    (tmp_path / "work" / "parts" / about.digest).write_bytes(FILES[WEIGHTS][:90_000])
    assert get(tmp_path / "work") == needed()
    assert {asked.range for asked in hub.asked if asked.path.endswith(WEIGHTS)} == {"bytes=90000-"}


def test_a_process_that_is_killed_leaves_its_part_to_the_next(hub: Hub, tmp_path: Path) -> None:
    """In a process of its own, since the client writes what came only in pieces of 10 MB."""
    files = {"config.json": FILES["config.json"], WEIGHTS: os.urandom(2**20) * 25}
    hub.commit(files)
    hub.cut, hub.stall = 22 * 2**20, threading.Event()
    code = (
        "import sys; from pathlib import Path; from attendant.hub.client import list_files\n"
        "from attendant.hub.download import download\n"
        f"download({NAME!r}, list_files({NAME!r}, 'main'), Path(sys.argv[1]), print)"
    )
    work = tmp_path / "work"
    with started([sys.executable, "-c", code, str(work)], env={**os.environ, "HF_TOKEN": SECRET}) as process:
        part = work / "parts" / list_files(NAME, "main").files[WEIGHTS].digest
        wait_for(lambda: part.exists() and part.stat().st_size >= 20_000_000)
        process.send_signal(signal.SIGKILL)
        process.wait()
    hub.stall.set()
    assert not (work / "tiny" / WEIGHTS).exists()
    assert get(work) == files
    assert int(re.fullmatch(r"bytes=(\d+)-", hub.asked[-1].range or "")[1]) >= 20_000_000  # type: ignore[index]


def test_a_file_that_changes_meanwhile_is_not_mixed_with_its_former_self(hub: Hub, tmp_path: Path) -> None:
    before = list_files(NAME, "main")
    (tmp_path / "work" / "parts").mkdir(parents=True)
    (tmp_path / "work" / "parts" / before.files[WEIGHTS].digest).write_bytes(FILES[WEIGHTS][:90_000])
    changed = {**FILES, WEIGHTS: b"new" + FILES[WEIGHTS]}
    hub.commit(changed)
    assert get(tmp_path / "new") == needed(changed)
    directory = download(NAME, before, tmp_path / "work", lambda _: None)  # what it was when it was listed
    assert (directory / WEIGHTS).read_bytes() == FILES[WEIGHTS]


@pytest.mark.parametrize(
    ("lie", "sentence"),
    [
        (b"x" * len(FILES[WEIGHTS]), r"sent twice a model\.safetensors of acme/tiny that has not the digest"),
        (FILES[WEIGHTS] + b"more", r"sends a model\.safetensors of acme/tiny that is longer than it lists"),
    ],
    ids=["other", "longer"],
)
def test_content_that_is_not_what_was_listed_is_never_taken(
    hub: Hub, tmp_path: Path, lie: bytes, sentence: str
) -> None:
    hub.lies[WEIGHTS] = lie
    with pytest.raises(HubError, match=sentence):
        get(tmp_path / "work")
    assert not (tmp_path / "work" / "tiny" / WEIGHTS).exists()
    hub.lies.clear()
    assert get(tmp_path / "work") == needed()


@pytest.mark.parametrize(
    ("status", "headers", "sentence"),
    [
        (401, {}, r"has no model acme/tiny that can be read: check the name; .* the token in HF_TOKEN gives no access"),
        (404, {"X-Error-Code": "RepoNotFound"}, r"127\.0\.0\.1 has no model acme/tiny that can be read"),
        (404, {"X-Error-Code": "RevisionNotFound"}, r"acme/tiny has no revision main"),
        (403, {"X-Error-Code": "GatedRepo"}, r"acme/tiny is gated: ask for access on its page"),
        (429, {"Retry-After": "37"}, r"asked too often from here \(429\): try again in 37 s, or set HF_TOKEN"),
        (500, {}, r"answers 500 for acme/tiny: try again"),
    ],
)
def test_a_refusal_is_a_sentence_without_the_token(
    hub: Hub, tmp_path: Path, status: int, headers: dict[str, str], sentence: str
) -> None:
    hub.refusal = status, {**headers, "X-Error-Message": f"you sent {SECRET}"}
    with pytest.raises(HubError, match=sentence) as caught:
        get(tmp_path / "work")
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_content_that_is_refused_for_too_many_requests_is_asked_for_again(hub: Hub, tmp_path: Path) -> None:
    listing = list_files(NAME, "main")
    hub.refusal, hub.refusals = (429, {"Retry-After": "0"}), 1
    directory = download(NAME, listing, tmp_path / "work", lambda _: None)
    assert {path.name for path in directory.iterdir()} == set(needed())


def test_without_a_token_a_private_model_asks_for_one(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.token = SECRET
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(HubError, match=r"if it is private, put a token that may read it into HF_TOKEN"):
        get(tmp_path / "work")


def test_a_token_that_can_be_none_is_not_shown(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", f"{SECRET} and more")
    with pytest.raises(HubError, match=r"HF_TOKEN is no token") as caught:
        list_files(NAME, "main")
    assert SECRET not in str(caught.value)
    assert hub.asked == []


def test_offline_is_a_sentence(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(HubError, match=r"acme/tiny is not in the cache, and HF_HUB_OFFLINE forbids to download it"):
        list_files(NAME, "main")


def test_a_hub_that_is_not_there_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(HubError, match=r"127\.0\.0\.1 cannot be reached \(ConnectError\), and acme/tiny is not in"):
        list_files(NAME, "main")


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({"config.json": b'{"model_type": "gpt2"}'}, r"has model_type 'gpt2'\. What can be imported is marian"),
        ({"config.json": b"["}, r"its config\.json cannot be read as JSON"),
        ({"README.md": b""}, r"has no config\.json, so it is no model of the transformers library"),
        ({"config.json": b'{"model_type": "bart"}', "tf_model.h5": b"1"}, r"neither model\.safetensors nor pytorch"),
        ({**FILES, WEIGHTS: b"", "model.safetensors.index.json": b"[]"} | {}, None),
    ],
    ids=["gpt2", "no json", "no config", "no weights", "both"],
)
def test_what_cannot_be_imported_is_refused_before_its_weights_are_downloaded(
    hub: Hub, tmp_path: Path, files: dict[str, bytes], sentence: str | None
) -> None:
    hub.commit(files)
    if sentence is None:
        get(tmp_path / "work")
        return
    with pytest.raises(HubError, match=sentence):
        get(tmp_path / "work")
    assert not {WEIGHTS, "pytorch_model.bin"} & set(hub.contents())


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 1 MB; where mounting is not allowed there is none."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(path)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting needs root")
    yield path
    subprocess.run(["umount", str(path)], check=True)


def test_a_disk_that_is_too_small_is_told_before_the_download(hub: Hub, small_disk: Path) -> None:
    hub.commit({**FILES, WEIGHTS: b"w" * 2_000_000})
    with pytest.raises(HubError, match=r"acme/tiny needs 2 MB more in .*/disk, where 1 MB are free"):
        get(small_disk / "acme--tiny" / "work")
    assert WEIGHTS not in hub.contents()


def test_a_disk_that_becomes_full_keeps_what_came(hub: Hub, small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attendant.hub.download._check_space", lambda *_: None)
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 100_000)
    hub.commit({**FILES, WEIGHTS: b"w" * 2_000_000})
    with pytest.raises(HubError, match=r"the disk of the cache is full .*: what was downloaded stays"):
        get(small_disk)
    assert sum(path.stat().st_size for path in (small_disk / "parts").iterdir()) > 500_000
    assert not (small_disk / "tiny" / WEIGHTS).exists()


def test_the_files_leave_once_they_were_used_and_stay_after_an_error(hub: Hub, tmp_path: Path) -> None:
    def fail() -> None:
        with downloaded(tmp_path, NAME, "main", lambda _: None):
            raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011
        fail()
    first = len(hub.contents())
    with downloaded(tmp_path, NAME, "main", lambda _: None) as directory:
        assert directory.name == "tiny"
    assert len(hub.contents()) == first  # nothing is downloaded twice
    assert not directory.parent.exists()


def test_it_is_huggingface_that_is_asked_where_nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    assert client._hub() == "huggingface.co"

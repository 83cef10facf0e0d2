"""Hugging Face's hub through its own client, `huggingface_hub`, which is imported when something is asked of the hub.

A repository is listed once, at a commit; its files are then read at that commit, so they belong together whatever is
pushed meanwhile. A file counts once it has the size and the digest that the listing says. One that is interrupted goes
on where it stopped, in this process or a later one: `huggingface_hub` keeps no part of a file that its process left.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from attendant.common.version import VERSION
from attendant.hub.errors import HubError
from attendant.hub.names import is_commit

LISTING_SECONDS = 30
LARGEST_FILE = 10**12  # bytes
# EFBIG: over a limit on the size of files.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
HTTP_LIBRARIES = ("httpx", "httpx2", "httpcore", "httpcore2")


@dataclass(frozen=True)
class RemoteFile:
    size: int  # bytes
    digest: str
    is_git: bool  # the digest is git's (SHA-1 of a blob), else the content's SHA-256


@dataclass(frozen=True)
class Listing:
    commit: str
    files: dict[str, RemoteFile]


def list_files(name: str, revision: str) -> Listing:
    """The commit that a revision is now, and the files of the repository at it."""
    with refusals(name, revision):
        import huggingface_hub

        api = huggingface_hub.HfApi(_endpoint(), token=_token(), library_name="attendant", library_version=VERSION)
        found = api.model_info(name, revision=revision, files_metadata=True, timeout=LISTING_SECONDS)
    if not is_commit(found.sha or ""):
        raise HubError(f"{_hub()} names no commit for {name}, revision {revision}; see HF_ENDPOINT.")
    assert found.sha is not None
    return Listing(found.sha, {file.rfilename: _remote_file(file, name) for file in found.siblings or []})


def _remote_file(sibling: Any, name: str) -> RemoteFile:
    large = sibling.lfs
    size, digest = (large.size, large.sha256) if large else (sibling.size, sibling.blob_id)
    if (
        not isinstance(size, int)
        or not 0 <= size <= LARGEST_FILE
        or not isinstance(digest, str)
        or not digest.isalnum()
    ):
        raise HubError(
            f"{_hub()} lists {sibling.rfilename!r:.80} of {name} without a size or a digest; see HF_ENDPOINT."
        )
    return RemoteFile(size, digest, not large)


def fetch(
    name: str, commit: str, file: str, about: RemoteFile, out: Path, parts: Path, add: Callable[[int], None]
) -> None:
    """Download a file to `out`, going on with what `parts` has of it; `add` is told the bytes as they come.

    Content that is not what was listed is thrown away and asked for once more, from its beginning.
    """
    if out.exists() and has_digest(out, about):
        add(about.size)
        return
    parts.mkdir(parents=True, exist_ok=True)
    part = parts / about.digest
    for _ in range(2):
        _download(name, commit, file, about, part, add)
        if has_digest(part, about):
            part.replace(out)
            return
        add(-part.stat().st_size)
        part.unlink()
    raise HubError(
        f"{_hub()} sent twice a {file} of {name} that has not the digest it lists; try again, or see HF_ENDPOINT."
    )


def _download(name: str, commit: str, file: str, about: RemoteFile, part: Path, add: Callable[[int], None]) -> None:
    """The content of a file into `part`, after what that has."""
    there = part.stat().st_size if part.exists() else 0
    if there > about.size:
        part.unlink()
        there = 0
    add(there)
    with refusals(name, commit), part.open("r+b" if there else "wb") as out:
        from huggingface_hub import hf_hub_url
        from huggingface_hub.file_download import http_get

        out.seek(there)
        http_get(
            hf_hub_url(name, file, revision=commit, endpoint=_endpoint()),
            out,
            resume_size=there,
            headers=_headers(),
            expected_size=about.size,
            tqdm_class=_bar(add, about.size, there, f"{file} of {name}"),
        )


def _bar(add: Callable[[int], None], most: int, counted: int, file: str) -> Any:
    """A progress bar's class that shows nothing, but counts, and stops a content that is longer than it was listed."""

    class Bar:
        def __init__(self, *_: Any, initial: int = 0, **__: Any) -> None:
            self._left = most - initial
            add(initial - counted)  # 0, but where the hub begins anew, though it was asked for the rest

        def update(self, count: float | None = 1) -> None:
            """Called before the bytes are written; with a negative number where the hub begins anew."""
            count = int(count or 0)
            self._left -= count
            if self._left < 0:
                raise HubError(f"{_hub()} sends a {file} that is longer than it lists; see HF_ENDPOINT.")
            add(count)

        def __enter__(self) -> Bar:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def close(self) -> None:
            pass

    return Bar


def has_digest(path: Path, about: RemoteFile) -> bool:
    if path.stat().st_size != about.size:
        return False
    if not about.is_git:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == about.digest
    content = path.read_bytes()  # git's own files are small
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest() == about.digest


def _headers() -> dict[str, str]:
    token = _token()
    return {"user-agent": f"attendant/{VERSION}"} | ({"authorization": f"Bearer {token}"} if token else {})


def _token() -> str | bool:
    """That of HF_TOKEN or of `hf auth login`; False: none, and the client is not to look for one."""
    from huggingface_hub import get_token

    token = get_token()
    if token and not (token.isascii() and token.isprintable() and " " not in token):
        raise HubError("HF_TOKEN is no token: it has spaces or characters that a token cannot have.")  # never shown
    return token or False


def _endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


def _hub() -> str:
    """The host's name."""
    return urlsplit(_endpoint()).hostname or "the hub"


@contextmanager
def refusals(name: str, revision: str) -> Iterator[None]:
    """What the client raises, as a sentence. Its own texts are not passed on: they may quote headers."""
    try:
        yield
    except HubError:
        raise
    except ModuleNotFoundError:
        raise
    except Exception as error:
        raise HubError(_sentence(error, name, revision)) from None


def _sentence(error: Exception, name: str, revision: str) -> str:
    from huggingface_hub import errors

    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, errors.OfflineModeIsEnabled):
        return (
            f"{name} is not in the cache, and HF_HUB_OFFLINE forbids to download it: unset that, or take the cache "
            "from a machine that has the model."
        )
    if isinstance(error, errors.GatedRepoError):
        return (
            f"{name} is gated: ask for access on its page at {_hub()}, and put a token of the account that has it into "
            "HF_TOKEN."
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{name} has no revision {revision}; see its branches and tags at {_hub()}."
    if isinstance(error, errors.RepositoryNotFoundError) or status in (401, 403, 404):
        known = _token() is not False
        token = "the token in HF_TOKEN gives no access to it" if known else "put a token that may read it into HF_TOKEN"
        return f"{_hub()} has no model {name} that can be read: check the name; if it is private, {token}."
    if status == 429:
        after = getattr(error, "response").headers.get("Retry-After", "")  # noqa: B009  (of the client's own type)
        wait = f"in {after} s" if after.isdecimal() else "in some minutes"
        return f"{_hub()} was asked too often from here (429): try again {wait}, or set HF_TOKEN, which may ask more."
    if status is not None:
        return (
            f"{_hub()} answers {status} for {name}: try again; what was downloaded stays, and is not asked for again."
        )
    if isinstance(error, OSError) and error.errno in FULL:
        return (
            "the disk of the cache is full (--cache-dir, ATTENDANT_CACHE_DIR): what was downloaded stays, and the next "
            "start goes on with it; free some space."
        )
    if type(error).__module__.split(".")[0] in HTTP_LIBRARIES or isinstance(error, ConnectionError | TimeoutError):
        return (
            f"{_hub()} cannot be reached ({type(error).__name__}), and {name} is not in the cache: check the network, "
            "a proxy (HTTPS_PROXY) or HF_ENDPOINT; what was downloaded stays, and is not asked for again."
        )
    if isinstance(error, OSError) and error.errno is not None:
        return f"{name} could not be downloaded: {error.strerror}" + (f", {error.filename}." if error.filename else ".")
    return f"{name} could not be downloaded ({type(error).__name__}); try again: what was downloaded stays."

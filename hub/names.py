"""Names of models on Hugging Face's hub, and their revisions. Both become parts of paths, so they are checked first."""

from __future__ import annotations

import re

from attendant.hub.errors import HubUsageError

PART = r"[A-Za-z0-9_](?:[\w.-]*[A-Za-z0-9_])?"
NAME = re.compile(rf"{PART}/{PART}", re.ASCII)
COMMIT = re.compile(r"[0-9a-f]{40}")
LONGEST = 200  # characters of a name or a revision
MAIN = "main"


def is_name(text: str) -> bool:
    """Whether it has the form OWNER/NAME of the hub."""
    return len(text) <= LONGEST and NAME.fullmatch(text) is not None and "--" not in text and ".." not in text


def check_name(text: str) -> str:
    if not is_name(text):
        raise HubUsageError(
            f"{text!r:.80} is no name of a model on Hugging Face, which is OWNER/NAME, as Helsinki-NLP/opus-mt-en-de."
        )
    return text


def check_revision(text: str) -> str:
    """A branch, a tag or a commit."""
    if not (0 < len(text) <= LONGEST and text.isprintable() and " " not in text):
        raise HubUsageError(f"--revision takes a branch, a tag or a commit, not {text!r:.80}.")
    return text


def is_commit(text: str) -> bool:
    return COMMIT.fullmatch(text) is not None


def short_name(name: str) -> str:
    """The part after the owner: what the service calls the model."""
    return name.rpartition("/")[2]

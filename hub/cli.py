"""`attendant models`: the models of Hugging Face that are in the cache, ready to be served by name."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from attendant.hub import cache as caches
from attendant.hub.cache import CachedModel
from attendant.hub.errors import HubUsageError
from attendant.hub.names import MAIN, check_name, check_revision

MAKING = ("source_language", "target_language", "samples")
ONLY_PULL = (*MAKING, "if_missing", "force")


def models(parser: argparse.ArgumentParser, arguments: list[str]) -> None:
    parser.add_argument(
        "action",
        nargs="?",
        default="list",
        choices=("list", "pull", "remove"),
        metavar="list|pull|remove",
        help="list those in the cache (default); pull: download, import and export one, or what has changed of it",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="a model's name on Hugging Face: OWNER/NAME")
    parser.add_argument("--revision", metavar="R", help=f"a branch, a tag or a commit (default: {MAIN}; remove: all)")
    parser.add_argument("--cache-dir", type=Path, metavar="DIR", help="the cache (default: as attendant serve has it)")
    parser.add_argument("--source-language", metavar="CODE", help="pull: as of attendant import")
    parser.add_argument("--target-language", metavar="CODE", help="pull: as of attendant import")
    parser.add_argument("--samples", metavar="TSV", help="pull: as of attendant import and attendant export")
    parser.add_argument("--if-missing", action="store_true", help="pull: ask the hub only if it is not there")
    parser.add_argument("--force", action="store_true", help="pull: make it again, even if it is there")
    parser.add_argument("--json", action="store_true", help="list: as JSON, sizes in bytes")
    options = parser.parse_args(arguments)
    cache = caches.cache_directory(options.cache_dir)
    _check(options)
    if options.action == "list":
        held = caches.list_models(cache)
        print(json.dumps([_as_json(model) for model in held], indent=2) if options.json else _table(cache, held))
    elif options.action == "remove":
        freed = caches.remove(cache, check_name(options.name), options.revision)
        print(f"{options.name} is removed: {freed / 1e6:,.1f} MB")
    else:
        _pull(cache, options)


def _check(options: argparse.Namespace) -> None:
    """HubUsageError for what does not go together."""
    if (options.name is None) != (options.action == "list"):
        raise HubUsageError(
            "attendant models list takes no name."
            if options.name
            else f"attendant models {options.action} takes a NAME."
        )
    given = [name for name in ONLY_PULL if getattr(options, name)]
    if given and options.action != "pull":
        raise HubUsageError(f"--{given[0].replace('_', '-')} is for attendant models pull.")
    if options.revision is not None:
        check_revision(options.revision)


def _pull(cache: Path, options: argparse.Namespace) -> None:
    from attendant.hub.pull import Making, pull

    given = {name: value for name in MAKING if (value := getattr(options, name)) is not None}
    making = Making(**given) if given else None
    name, revision = check_name(options.name), options.revision or MAIN
    pull(cache, name, revision, making, options.if_missing, options.force, _say)


def _say(line: str) -> None:
    print(line, file=sys.stdout, flush=True)


def _as_json(model: CachedModel) -> dict[str, object]:
    return {
        "name": model.name,
        "commit": model.commit,
        "revisions": list(model.revisions),
        "directory": str(model.directory),
        "bytes": model.size,
        "whole": model.whole,
    }


def _table(cache: Path, held: list[CachedModel]) -> str:
    if not held:
        return f"there is no model in {cache}; attendant serve OWNER/NAME puts one there."
    width = max(len(model.name) for model in held)
    lines = [f"{cache}:"]
    for model in held:
        at = ", ".join(model.revisions) or "-"
        unfinished = "" if model.whole else "  unfinished: the next start goes on with it"
        lines.append(
            f"  {model.name:<{width}}  {model.commit[:12]}  {at:<8}  {model.size / 1e6:>10,.1f} MB{unfinished}"
        )
    return "\n".join(lines)

"""`attendant serve`."""

from __future__ import annotations

import argparse
import logging
import os
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

from attendant.export.bundle import read_manifest
from attendant.hub.names import is_name
from attendant.service.commands.named import with_bundle
from attendant.service.errors import StartError
from attendant.service.models.bundles import find_bundles
from attendant.service.settings import Settings, flag, read_settings, takes


def serve(parser: argparse.ArgumentParser, arguments: list[str]) -> None:
    parser.add_argument(
        "served",
        nargs="?",
        metavar="MODEL",
        help="a bundle's directory, or a model of Hugging Face by its name: short for --bundle and --model",
    )
    parser.epilog = "Every setting is also a variable: --max-rows is ATTENDANT_MAX_ROWS. The flag wins."
    for setting in fields(Settings):
        default = "" if setting.default in (None, ()) else f"; default: {_text(setting.default)}"
        extra: dict[str, Any] = {"nargs": "?", "const": "true"} if setting.type is bool else {}
        parser.add_argument(
            flag(setting.name),
            dest=setting.name,
            metavar="VALUE",
            default=argparse.SUPPRESS,
            help=f"{setting.metadata['about']} ({takes(setting)}{default})",
            **extra,
        )
    given = vars(parser.parse_args(arguments))
    served = given.pop("served")
    if served is not None:
        name = "bundle" if Path(served).is_dir() else "model"
        if name == "model" and not is_name(served):
            parser.error(
                f"{served} is neither a bundle's directory nor the name of a model on Hugging Face, OWNER/NAME"
            )
        if also := [flag(each) for each in ("bundle", "model", "models") if each in given]:
            parser.error(f"{served} and {also[0]} are both given; leave one out.")
        given[name] = served
    run(with_bundle(read_settings(given, os.environ)))


def _text(default: Any) -> str:
    """A default as it is written in a flag or a variable."""
    return str(default).lower() if isinstance(default, bool) else str(default)


def run(settings: Settings) -> None:
    from attendant.service.http import garbage

    garbage.look_less_often()
    from attendant.service.http.app import bundle_directory
    from attendant.service.http.server import Server
    from attendant.service.watch import (
        logs,  # the web framework is imported only once the settings are known to be good
    )

    if settings.models is not None:
        find_bundles(settings.models)
    else:
        directory = bundle_directory(settings)
        if settings.bundle is None and not directory.is_dir():
            raise StartError("there is no embedded model in this installation; give a bundle with --bundle DIR.")
        read_manifest(directory)
    logs.configure(settings)
    server = Server(settings, announce=_announce, settle=garbage.settle)
    server.run()
    if server.models.hanging:  # its thread may be inside onnxruntime, which the interpreter's own exit takes apart
        logging.shutdown()
        os._exit(0)


def _announce(line: str) -> None:
    with suppress(OSError):  # standard output may be closed; requests are served all the same
        print(line, flush=True)

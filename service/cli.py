"""`attendant serve`, once there is a service."""

from __future__ import annotations

from argparse import ArgumentParser


class NotServingError(Exception):
    exit_code = 1


def serve(_parser: ArgumentParser, _arguments: list[str]) -> None:
    raise NotServingError("there is no service yet: this version trains, evaluates and exports.")

"""`attendant serve`, once there is a service."""

from __future__ import annotations


class NotServingError(Exception):
    exit_code = 1


def main(command: str, _: list[str]) -> None:
    raise NotServingError(f"there is no service to {command} with yet: this version trains and evaluates.")

"""Errors of models by name that a person can act on.

HubError           what was wrong, with which name, what to do; exit 1
├── HubUsageError      a name or a revision that can be none; exit 2
├── ChildFailedError   a command that was run for it failed, and has said why
└── InterruptedPullError   a signal ended the work; what was downloaded stays; exit 128 + the signal's number
"""

from __future__ import annotations


class HubError(Exception):
    exit_code = 1


class HubUsageError(HubError):
    exit_code = 2


class ChildFailedError(HubError):
    is_told = True


class InterruptedPullError(HubError):
    def __init__(self, message: str, signal: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal

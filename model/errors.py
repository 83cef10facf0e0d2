"""Errors that a person can act on.

UserError          what was wrong, with which value, what to do; exit 1
├── ConfigError    an option out of its range; every problem of a config in one message; exit 2
├── DataError      a file that is not a corpus; names the file and the line; exit 1
└── InterruptedRunError   a signal stopped a training; says what --resume will do; exit 130 or 143
"""


class UserError(Exception):
    exit_code = 1


class ConfigError(UserError):
    exit_code = 2


class DataError(UserError):
    pass


class InterruptedRunError(UserError):
    """A signal stopped the run; the exit code is the shell's for that signal."""

    def __init__(self, message: str, signal: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal

"""Errors that a person can act on.

UserError          what was wrong, with which value, what to do; exit 1
├── ConfigError    an option out of its range; every problem of a config in one message; exit 2
└── DataError      a file that is not a corpus; names the file and the line; exit 1
"""


class UserError(Exception):
    exit_code = 1


class ConfigError(UserError):
    exit_code = 2


class DataError(UserError):
    pass


class InterruptedRunError(UserError):
    exit_code = 130

"""The version, and the name under which pip knows this project: `attendant` on PyPI is another one."""

VERSION = "0.2.0"
DISTRIBUTION = "attendant-transformer"


def install_command(extra: str) -> str:
    """What installs an extra: train, dev, bench, baseline, otel, parquet, ray or texts."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"

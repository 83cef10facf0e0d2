"""The path that the router matches: a request's path below the root path. Starlette has it, but not in public."""

from __future__ import annotations

from starlette._utils import get_route_path as route_path

__all__ = ["route_path"]

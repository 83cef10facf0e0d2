"""A bare FastAPI endpoint that answers at once: what HTTP alone costs on this machine.

python -m bench.http.bare_app --port 8002
"""

from __future__ import annotations

import argparse
from typing import Any

from fastapi import FastAPI

app = FastAPI()


@app.post("/v1/generate")
async def generate() -> dict[str, Any]:
    return {"outputs": [], "usage": {"source_tokens": 1, "target_tokens": 1}}


@app.get("/readyz")
async def ready() -> dict[str, bool]:
    return {"ready": True}


def main() -> None:
    parser = argparse.ArgumentParser(description="A bare endpoint, for comparison.")
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args()

    import uvicorn

    uvicorn.run(app, host="127.0.0.1", port=options.port, log_level="warning", access_log=False)


if __name__ == "__main__":
    main()

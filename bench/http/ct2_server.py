"""CTranslate2 behind a thin FastAPI app that batches concurrent requests, as its users build it.

    python -m bench.http.ct2_server --model DIR --precision int8 --port 8001

A request waits at most a few milliseconds for others; then all that wait, up to a limit, are translated as one batch in
a thread, those of another beam size as another batch. While a batch runs, the next one gathers. It takes and gives the
fields of `/v1/generate` that the load uses, so both servers answer the very same requests.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response

from bench.versus.engines import PEER_NAMES

WAIT = 0.003  # seconds that the first of a batch waits for others
LARGEST_BATCH = 64  # requests


@dataclass(frozen=True)
class Item:
    tokens: list[str]
    beam_size: int
    max_length: int
    done: asyncio.Future[list[str]]


Translate = Callable[[list[list[str]], int, int], list[list[str]]]  # sources, beam size, longest target -> targets


class Batcher:
    """Gathers requests and has them translated together."""

    def __init__(self, translate: Translate, workers: int, wait: float = WAIT) -> None:
        self._translate, self._wait = translate, wait
        self._queue: asyncio.Queue[Item] = asyncio.Queue()
        self._executor = ThreadPoolExecutor(workers)
        self._workers = workers
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._serve()) for _ in range(self._workers)]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._executor.shutdown(wait=False, cancel_futures=True)

    def ask(self, tokens: list[str], beam_size: int, max_length: int) -> Awaitable[list[str]]:
        done: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait(Item(tokens, beam_size, max_length, done))
        return done

    async def _serve(self) -> None:
        while True:
            for items in group(await self._gather()):
                await self._run(items)

    async def _gather(self) -> list[Item]:
        items = [await self._queue.get()]
        if self._queue.qsize() + 1 < LARGEST_BATCH:
            await asyncio.sleep(self._wait)
        while len(items) < LARGEST_BATCH and not self._queue.empty():
            items.append(self._queue.get_nowait())
        return items

    async def _run(self, items: list[Item]) -> None:
        loop = asyncio.get_running_loop()
        arguments = ([item.tokens for item in items], items[0].beam_size, max(item.max_length for item in items))
        try:
            targets = await loop.run_in_executor(self._executor, self._translate, *arguments)
        except Exception as error:
            for item in items:
                if not item.done.done():
                    item.done.set_exception(error)
            return
        for item, target in zip(items, targets, strict=True):
            if not item.done.done():
                item.done.set_result(target[: item.max_length])


def group(items: list[Item]) -> list[list[Item]]:
    """CTranslate2 takes one beam size for a batch."""
    by_beam: dict[int, list[Item]] = defaultdict(list)
    for item in items:
        by_beam[item.beam_size].append(item)
    return list(by_beam.values())


def create_app(translate: Translate, workers: int) -> FastAPI:
    batcher = Batcher(translate, workers)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        batcher.start()
        yield
        await batcher.stop()

    app = FastAPI(lifespan=lifespan)

    @app.post("/v1/generate")
    async def generate(request: Request) -> Response:
        asked = json.loads(await request.body())
        source = [*asked["inputs"].split(), PEER_NAMES[3]]
        longest = asked.get("max_length", 256)
        target = await batcher.ask(source, asked.get("beam_size", 1), longest)
        ended = len(target) < longest  # the end token, which CTranslate2 leaves out, counts as in our answers
        answer = {
            "outputs": [{"hypotheses": [{"text": " ".join(target), "tokens": target}]}],
            "usage": {"source_tokens": len(source), "target_tokens": len(target) + ended},
        }
        return Response(json.dumps(answer), media_type="application/json")

    @app.get("/readyz")
    async def ready() -> dict[str, Any]:
        return {"ready": True}

    return app


def make_translate(model: Path, precision: str, workers: int, threads: int) -> Translate:
    import ctranslate2

    compute_type = {"fp32": "float32", "int8": "int8"}[precision]
    translator = ctranslate2.Translator(
        str(model), device="cpu", compute_type=compute_type, inter_threads=workers, intra_threads=threads
    )

    def translate(sources: list[list[str]], beam_size: int, max_length: int) -> list[list[str]]:
        results = translator.translate_batch(
            sources, max_batch_size=0, beam_size=beam_size, max_input_length=0, max_decoding_length=max_length
        )
        return [result.hypotheses[0] for result in results]

    return translate


def main() -> None:
    parser = argparse.ArgumentParser(description="CTranslate2 over HTTP, for comparison.")
    parser.add_argument("--model", type=Path, required=True, help="what bench.models.peers wrote")
    parser.add_argument("--precision", choices=("fp32", "int8"), default="int8")
    parser.add_argument("--workers", type=int, default=1, help="batches translated at the same time")
    parser.add_argument("--threads", type=int, default=2, help="of each")
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args()

    import uvicorn

    translate = make_translate(options.model, options.precision, options.workers, options.threads)
    translate([["t4", PEER_NAMES[3]]], 1, 2)
    app = create_app(translate, options.workers)
    uvicorn.run(app, host="127.0.0.1", port=options.port, log_level="warning", access_log=False)


if __name__ == "__main__":
    main()

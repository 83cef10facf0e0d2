"""A model in a FastAPI application of your own: one process, no service beside it, requests decoded together.

`pip install uvicorn`, then `uvicorn --app-dir examples fastapi_app:app`; as a program it asks itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from fastapi import FastAPI, HTTPException
from fastapi.responses import StreamingResponse

from attendant import InvalidFieldError, Model


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    with Model() as app.state.model:  # here, not at import: in each worker, after any fork
        yield


app = FastAPI(lifespan=lifespan)


@app.get("/pronounce/{word}")
async def pronounce(word: str) -> dict[str, str]:
    model: Model = app.state.model
    try:
        output = await model.generate_async(word, beam_size=4)
    except InvalidFieldError as error:
        raise HTTPException(422, str(error)) from None
    return {"word": word, "phones": output.text}


@app.get("/spell-out/{word}")
async def spell_out(word: str) -> StreamingResponse:
    model: Model = app.state.model

    async def pieces() -> AsyncIterator[str]:
        async for token in model.stream_async(word):  # a client that leaves ends the loop, and so the decoding
            yield token.text

    return StreamingResponse(pieces(), media_type="text/plain")


async def main() -> None:
    transport = httpx.ASGITransport(app)
    async with lifespan(app), httpx.AsyncClient(transport=transport, base_url="http://app") as client:
        words = ["attendant", "through", "facade"]
        for answer in await asyncio.gather(*(client.get(f"/pronounce/{word}") for word in words)):
            print(answer.json()["phones"])
        print((await client.get("/spell-out/attendant")).text)
        print((await client.get("/pronounce/a€")).json()["detail"])


if __name__ == "__main__":
    asyncio.run(main())

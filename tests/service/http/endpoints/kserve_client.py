"""A process of its own with KServe's client, from the directory of packages that `make .venv/kserve` makes.

python -m tests.service.http.endpoints.kserve_client PACKAGES URL: prints as JSON what the client finds and gets.
KServe's package imports its whole server when it is imported itself, and pins an older protobuf than the tests need:
the client's own modules are imported without it.
"""

from __future__ import annotations

import asyncio
import json
import sys
import types
from pathlib import Path
from typing import Any


async def ask(url: str) -> dict[str, Any]:
    import numpy as np
    from kserve.inference_client import InferenceRESTClient, RESTConfig  # type: ignore[import-not-found]
    from kserve.protocol.infer_type import (  # type: ignore[import-not-found]
        InferInput,
        InferRequest,
        RequestedOutput,
    )

    def request(binary: bool, name: str = "fake", **options: Any) -> Any:
        tensor = InferInput("text_input", [2], "BYTES")
        tensor.set_data_from_numpy(np.array([b"cat", b"fab"], dtype=object), binary_data=binary)
        return InferRequest(name, [tensor], **options)

    client = InferenceRESTClient(RESTConfig(protocol="v2", timeout=20))
    found: dict[str, Any] = {
        "live": await client.is_server_live(url),
        "ready": await client.is_server_ready(url),
        "model_ready": await client.is_model_ready(url, "fake"),
        "other_ready": await client.is_model_ready(url, "other"),
    }
    for name, binary in (("json", False), ("binary", True)):
        outputs = [RequestedOutput("text_output", parameters={"binary_data": binary})]
        asked = request(binary, parameters={"beam_size": 2}, request_outputs=outputs)
        answer = await client.infer(url, asked, model_name="fake")
        found[name] = answer.outputs[0].as_numpy().astype(str).tolist()
    try:
        await client.infer(url, request(False, name="another"), model_name="fake")
    except Exception as error:
        found["refusal"] = str(error)
    await client.close()
    return found


if __name__ == "__main__":
    packages, address = sys.argv[1:]
    sys.path.insert(0, packages)
    bare = types.ModuleType("kserve")
    bare.__path__ = [str(Path(packages, "kserve"))]
    sys.modules["kserve"] = bare
    print(json.dumps(asyncio.run(ask(address))))

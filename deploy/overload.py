"""The largest requests that the settings admit, all at once: what the image must live through under its memory limit.

Bodies that arrive and never end, plain and compressed; bodies that become the most objects; explanations of the longest
texts; and the largest answers, hypotheses and whole vocabularies, of which nobody reads a byte.
"""

from __future__ import annotations

import gzip
import json
import re
import resource
import selectors
import socket
import time
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import cycle
from typing import Any

CONNECTIONS = 850  # at once: a few less than max_connections, for the questions in between
HOLD_SECONDS = 15.0  # for which connections are kept open, unread
PATIENCE = 120.0  # seconds until the server must answer again
KINDS = ("arriving", "compressed", "nested", "explained", "vocabulary", "unread")


def request(path: str, body: bytes, *lines: bytes, missing: int = 0) -> bytes:
    """A request as it is sent, without the last `missing` bytes."""
    head = [b"POST %s HTTP/1.1" % path.encode(), b"host: attendant", b"content-length: %d" % len(body), *lines]
    whole = b"\r\n".join([*head, b"", b""]) + body
    return whole[: len(whole) - missing]


def requests(limits: dict[str, Any], token: str = "a", sizes: dict[str, int] | None = None) -> dict[str, bytes]:
    """One of each kind, as large as the limits of /v1/info allow; `token` is one of the source, repeated in a text.

    Where all attention weights of a model of these sizes are too many, those of some layers and kinds are asked for.
    """
    size, source = limits["max_body_bytes"], (token * limits["max_source_length"]).strip()
    padded = b'{"inputs": "a"' + b" " * (size - 15) + b"}"
    nested = b'{"inputs": [' + b",".join([b"{}"] * ((size - 20) // 3)) + b"]}"
    explained = {"source": source, "alternatives": 100, "min_length": 1, **_attention(limits, sizes)}
    beams = min(limits["max_beam_size"], limits["max_rows"])
    texts = max(1, min(limits["max_inputs"], limits["max_queue_tokens"] // ((beams + 1) * limits["max_target_length"])))
    unread = {"inputs": [source] * texts, "beam_size": beams, "num_hypotheses": beams, "logprobs": True}
    return {
        "arriving": request("/v1/generate", padded, missing=1),
        "compressed": request("/v1/generate", gzip.compress(padded), b"content-encoding: gzip", missing=4),
        "nested": request("/v1/generate", nested),
        "explained": request("/v1/explain", json.dumps(explained).encode()),
        "vocabulary": request("/v1/next-token", json.dumps({"source": source, "top_k": 0}).encode()),
        "unread": request("/v1/generate", json.dumps(unread).encode()),
    }


def _attention(limits: dict[str, Any], sizes: dict[str, int] | None) -> dict[str, Any]:
    """The most attention weights that an explanation of the longest text may have."""
    everything: dict[str, Any] = {"attention": ["encoder", "decoder", "cross"]}
    if sizes is None:
        return everything
    source, target = limits["max_source_length"] + 1, limits["max_target_length"]
    layers = {"encoder": sizes["encoder_layers"], "decoder": sizes["decoder_layers"], "cross": sizes["decoder_layers"]}
    weights = {"encoder": source**2, "decoder": target**2, "cross": source * target}
    most = limits["max_explain_values"] / sizes["heads"]
    if sum(layers[kind] * weights[kind] for kind in weights) <= most:
        return everything
    kinds = ["cross", "encoder"] if weights["cross"] + weights["encoder"] <= most else ["cross"]
    return {"attention": kinds, "layers": [0]}


def survive(url: str, alive: Callable[[], bool], token: str = "a") -> tuple[bool, str]:
    """Whether the server lives through each kind alone and all at once, and answers as before; and what was found."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, CONNECTIONS + 200)), hard))
    info = json.loads(get(f"{url}/v1/info"))
    sent = requests(info["limits"], token, info["bundle"]["sizes"])
    found = []
    for kinds in (*((kind,) for kind in KINDS), KINDS):
        found += [f"{kind} {statuses}" for kind, statuses in overload(url, sent, kinds).items()]
        if not alive() or not answers(url, token):
            return False, f"it did not live through {' and '.join(kinds)}; {'; '.join(found)}"
    resident = re.findall(r"^process_resident_memory_bytes (\S+)$", get(f"{url}/metrics"), re.MULTILINE)
    found.append(f"{float(resident[0]) / 1e6:.0f} MB are resident afterwards" if resident else "")
    return True, "; ".join(found)


def get(url: str, body: bytes | None = None) -> str:
    with urllib.request.urlopen(urllib.request.Request(url, body), timeout=10) as answer:
        return str(answer.read().decode())


def answers(url: str, token: str = "a") -> bool:
    """Whether it answers a small request, once it has had time to look at the large ones."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        with suppress(OSError):
            get(f"{url}/v1/generate", json.dumps({"inputs": token.strip(), "max_length": 9}).encode())
            return True
        time.sleep(0.5)
    return False


def overload(url: str, sent: Mapping[str, bytes], kinds: Sequence[str]) -> dict[str, str]:
    """Send requests of these kinds by turns, one over each connection; the statuses of each kind, and how often."""
    address = urllib.parse.urlsplit(url)
    clients = [Client(kind, sent[kind]) for _, kind in zip(range(CONNECTIONS), cycle(kinds), strict=False)]
    with selectors.DefaultSelector() as selector:
        for client in clients:
            client.connect(address.hostname or "", address.port or 0, selector)
        _run(selector, time.monotonic() + HOLD_SECONDS)
        for client in clients:
            client.socket.close()
    counted = Counter((client.kind, client.answer[9:12].decode() or "no answer yet") for client in clients)
    return {
        kind: ", ".join(f"{count} x {status}" for (of, status), count in sorted(counted.items()) if of == kind)
        for kind in kinds
    }


class Client:
    """Sends its request, and reads no more of the answer than its status."""

    def __init__(self, kind: str, whole: bytes) -> None:
        self.kind, self._left = kind, memoryview(whole)
        self.answer = b""
        self.socket = socket.socket()

    def connect(self, host: str, port: int, selector: selectors.BaseSelector) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.setblocking(False)
        self.socket.connect_ex((host, port))
        selector.register(self.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, self)

    def step(self, selector: selectors.BaseSelector, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE and self._left:
                self._left = self._left[self.socket.send(self._left[:65536]) :]
            if events & selectors.EVENT_READ:
                self.answer = self.socket.recv(12)
                self._left = self._left[:0]
        except BlockingIOError:
            return
        except OSError:
            self._left, self.answer = self._left[:0], self.answer or b"         cut"
        if self.answer:
            selector.unregister(self.socket)
        elif not self._left:
            selector.modify(self.socket, selectors.EVENT_READ, self)


def _run(selector: selectors.BaseSelector, until: float) -> None:
    while selector.get_map() and time.monotonic() < until:
        for key, events in selector.select(0.1):
            with suppress(KeyError):
                key.data.step(selector, events)

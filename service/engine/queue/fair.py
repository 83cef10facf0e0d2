"""Who is next: rows are shared fairly between clients, then between the requests of a client.

A row goes to the client that holds the fewest rows, there to the request that holds the fewest, and there to the text
that came first; of equals, to those that came first. So a request of one text is behind no more than one text of each
request before it, however many texts these have. Why rows and not tokens is in docs/decisions/022-fair-rows.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from attendant.service.engine.batch.job import Job

Ready = Callable[["Job"], bool]


class Client:
    """Whoever sent a request and, by it, is told from others; a request that does not say who sent it has its own."""

    __slots__ = ("__weakref__", "known", "rows", "waiting")

    def __init__(self, known: bool) -> None:
        self.known = known  # it said who it is
        self.rows = 0  # that its jobs in lanes may occupy
        self.waiting: dict[Request, None] = {}  # its requests that have jobs in the queue, oldest first


class Request:
    """Jobs that were submitted together."""

    __slots__ = ("client", "large", "passed", "rows", "waiting")

    def __init__(self, client: Client, large: bool) -> None:
        self.client, self.large = client, large
        self.rows = 0  # that its jobs in lanes may occupy
        self.passed = 0  # jobs of others that were admitted since its next one first found too few free rows
        self.waiting: dict[Job, None] = {}

    def hold(self, rows: int) -> None:
        """Count rows of a job that enters a lane; below zero, of one that leaves."""
        self.rows += rows
        self.client.rows += rows


class FairQueue:
    """Waiting jobs; iterating over it gives them in the order in which they came."""

    def __init__(self) -> None:
        self._jobs: dict[Job, None] = {}
        self._clients: dict[Client, None] = {}  # those that have requests here, oldest first
        self._known: WeakValueDictionary[str, Client] = WeakValueDictionary()
        self.tokens = self.rows = 0  # budgets of all jobs

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, job: Job) -> bool:
        return job in self._jobs

    def __iter__(self) -> Iterator[Job]:
        return iter(self._jobs)

    def client(self, name: str | None) -> Client:
        """The client of this name; without a name, a new one."""
        if name is None:
            return Client(known=False)
        found = self._known.get(name)
        if found is None:
            found = self._known[name] = Client(known=True)
        return found

    def add(self, jobs: Iterable[Job], request: Request) -> None:
        for job in jobs:
            job.request = request
            request.waiting[job] = self._jobs[job] = None
            self.tokens += job.task.token_budget
            self.rows += job.task.rows
        if request.waiting:
            request.client.waiting[request] = self._clients[request.client] = None

    def remove(self, job: Job) -> None:
        request = job.request
        client = request.client
        del self._jobs[job], request.waiting[job]
        self.tokens -= job.task.token_budget
        self.rows -= job.task.rows
        if not request.waiting:
            del client.waiting[request]
        if not client.waiting:
            del self._clients[client]

    def next(self, ready: Ready, passed: Collection[Request] = ()) -> Job | None:
        """The job whose turn it is, among those that are `ready` and of requests that are not in `passed`."""
        found, fewest = None, 0
        for client in self._clients:
            if found is None or client.rows < fewest:
                job = _next_of(client, ready, passed)
                if job is not None:
                    found, fewest = job, client.rows
                    if not fewest:
                        break
        return found


def _next_of(client: Client, ready: Ready, passed: Collection[Request]) -> Job | None:
    found, fewest = None, 0
    for request in client.waiting:
        if (found is None or request.rows < fewest) and request not in passed:
            job = next(filter(ready, request.waiting), None)
            if job is not None:
                found, fewest = job, request.rows
                if not fewest:
                    break
    return found

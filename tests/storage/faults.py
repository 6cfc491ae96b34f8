"""A proxy that injects and counts seeded failures, which resemble failures of a real bucket."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import random
import re
import threading
from typing import Final

import aiohttp
from aiohttp import web

# Headers that a proxy must not forward.
_OWN: Final = {"host", "connection", "transfer-encoding", "content-length", "keep-alive"}

SLOW_SECONDS: Final = 0.2

# Permission of each request for a bucket itself; roles/storage.objectUser has none of them.
_PERMISSIONS: Final = {
    ("GET", True): "storage.buckets.get",
    ("GET", False): "storage.buckets.list",
    ("POST", False): "storage.buckets.create",
}


@dataclasses.dataclass(frozen=True)
class Faults:
    """Fraction of requests that fail, by kind of failure."""

    refused: float = 0.0  # not executed, answered with 429 or 503
    reset: float = 0.0  # executed, but the connection is closed without an answer
    cut: float = 0.0  # executed, but the connection is closed in the middle of a download
    slow: float = 0.0  # answered after 0.2 s
    seed: int = 0
    answered: int | None = None  # number of requests before all others are refused

    @classmethod
    def share(cls, share: float, *, seed: int = 0) -> Faults:
        """Returns faults in which all kinds are equally frequent."""
        return cls(refused=share / 4, reset=share / 4, cut=share / 4, slow=share / 4, seed=seed)


class Proxy:
    """Forwards requests to a server, and injects failures.

    Attributes:
        url: address of the proxy.
        failed: number of requests that failed, by kind.
        requests: number of requests, by method and path.
        down: whether every request is refused.
        forbidden: whether every request is answered with 403, which clients do not retry.
        missing: permissions that clients lack, such as ``storage.buckets.get``.
        unwritable: end of the names of objects whose uploads are refused.
    """

    def __init__(self, upstream: str) -> None:
        """Does not start the proxy."""
        self.url = ""
        self._upstream = upstream
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self.reset()

    def reset(self) -> None:
        """Ends all failures."""
        self.inject(Faults())

    def inject(self, faults: Faults) -> None:
        """Injects these failures from now on, and resets the counts."""
        self.down = self.forbidden = False
        self.missing: frozenset[str] = frozenset()
        self.unwritable = ""
        self._faults = faults
        self._random = random.Random(faults.seed)
        self.failed: collections.Counter[str] = collections.Counter()
        self.requests: collections.Counter[str] = collections.Counter()

    def __enter__(self) -> Proxy:
        self._thread.start()
        assert self._ready.wait(60)
        return self

    def __exit__(self, *raised: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        # No size limit, because each array of a checkpoint is sent in one request.
        application = web.Application(client_max_size=1 << 40)
        application.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = "http://{}:{}".format(*runner.addresses[0])
        async with aiohttp.ClientSession(auto_decompress=False) as self._session:
            self._ready.set()
            await self._stop.wait()
            await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.requests[f"{request.method} {request.path}"] += 1
        if self.forbidden:
            return web.json_response({"error": {"code": 403, "message": "over quota"}}, status=403)
        if (permission := _permission(request)) in self.missing:
            self.failed[permission] += 1
            error = f"hosts@test.iam.gserviceaccount.com does not have {permission} access"
            return web.json_response({"error": {"code": 403, "message": error}}, status=403)
        fault = self._choose(request, body)
        if fault:
            self.failed[fault] += 1
        if fault == "refused":
            status = self._random.choice((429, 503))
            error = {"error": {"code": status, "message": "try again"}}
            return web.json_response(error, status=status)
        if fault == "slow":
            await asyncio.sleep(SLOW_SECONDS)
        answer = await self._forward(request, body)
        if fault == "reset":
            _close(request)
        if fault == "cut":
            await _half(request, answer)
        return answer

    def _choose(self, request: web.Request, body: bytes) -> str:
        limit = self._faults.answered
        if self.down or (limit is not None and self.requests.total() > limit):
            return "refused"
        if self.unwritable and f'{self.unwritable}"'.encode() in body[:1000]:  # an upload
            return "refused"
        drawn = self._random.random()
        for kind in ("refused", "reset", "cut", "slow"):
            drawn -= getattr(self._faults, kind)
            if drawn < 0:
                return "reset" if kind == "cut" and request.method != "GET" else kind
        return ""

    async def _forward(self, request: web.Request, body: bytes) -> web.Response:
        headers = {k: v for k, v in request.headers.items() if k.lower() not in _OWN}
        # The server builds upload URLs from the Host header.
        headers["Host"] = request.host
        async with self._session.request(
            request.method,
            f"{self._upstream}{request.raw_path}",
            headers=headers,
            data=body,
            allow_redirects=False,
        ) as answer:
            kept = {k: v for k, v in answer.headers.items() if k.lower() not in _OWN}
            return web.Response(body=await answer.read(), status=answer.status, headers=kept)


def _permission(request: web.Request) -> str:
    """Returns the permission that a request for a bucket needs, or "" for other requests."""
    bucket = re.fullmatch(r"/storage/v1/b(/[^/]+)?", request.path)
    return _PERMISSIONS.get((request.method, bool(bucket[1])), "") if bucket else ""


async def _half(request: web.Request, answer: web.Response) -> None:
    """Sends half of an answer, and closes the connection."""
    content = answer.body
    assert isinstance(content, bytes)
    begun = web.StreamResponse(status=answer.status, headers=answer.headers)
    begun.content_length = len(content)
    await begun.prepare(request)
    await begun.write(content[: len(content) // 2])
    _close(request)


def _close(request: web.Request) -> None:
    assert request.transport is not None
    request.transport.abort()

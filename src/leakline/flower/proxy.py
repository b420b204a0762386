"""A proxy before a SuperLink that lets nodes reach the fleet API and nothing else.

Flower 1.41 serves nodes, whoever submits code and its own helpers on one port. Whoever reaches all of it can run code
at every node, so the SuperLink listens on its own machine alone, and this listens to the world. A request is read,
looked at and made anew: nothing of its first line but one of a few known paths goes on.
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

import httpx

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

ALLOWED = (("POST", re.compile(rb"/v1/fleet/[a-z-]{1,64}")), ("GET", re.compile(rb"/health")))
HOPS = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization te trailer transfer-encoding upgrade host".split()
)
"""Headers that are meant for the next machine only."""


def proxy(superlink: str, certificate: Path | None, timeout: float = 300.0) -> App:
    """The proxy as an ASGI app; ``certificate``: by which the SuperLink behind it is known (None: no encryption)."""
    scheme = "http" if certificate is None else "https"
    client = httpx.AsyncClient(
        base_url=f"{scheme}://{superlink}", verify=str(certificate) if certificate else True, timeout=timeout,
        trust_env=False, limits=httpx.Limits(max_connections=None),
    )  # fmt: skip

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
            await client.aclose()
            return
        if scope["type"] != "http":
            return
        path = bytes(scope.get("raw_path") or b"")
        if not any(scope["method"] == method and allowed.fullmatch(path) for method, allowed in ALLOWED):
            told = path[:80].decode("ascii", "backslashreplace").encode("unicode_escape").decode()
            logging.getLogger("leakline").warning("refused: %s %s", scope["method"], told)
            await _answer(send, 403, b"this proxy lets nodes through, and nobody else\n")
            return
        try:
            await _forward(client, scope, path.decode(), receive, send)
        except httpx.TransportError as error:
            logging.getLogger("leakline").warning("the SuperLink did not answer: %s", type(error).__name__)
            await _answer(send, 502, b"no SuperLink answers behind this proxy\n")

    return app


async def _forward(client: httpx.AsyncClient, scope: Message, path: str, receive: Receive, send: Send) -> None:
    async def body() -> AsyncIterator[bytes]:
        more = True
        while more:
            part = await receive()
            more = bool(part.get("more_body", False))
            yield part.get("body", b"")

    headers = [(name, value) for name, value in scope["headers"] if name.lower() not in HOPS]
    has_body = scope["method"] == "POST"
    asked = client.build_request(scope["method"], path, headers=headers, content=body() if has_body else None)
    answer = await client.send(asked, stream=True)
    try:
        kept = [(name.lower(), value) for name, value in answer.headers.raw if name.lower() not in HOPS]
        await send({"type": "http.response.start", "status": answer.status_code, "headers": kept})
        async for part in answer.aiter_raw():
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
    finally:
        await answer.aclose()


async def _answer(send: Send, status: int, text: bytes) -> None:
    headers = [(b"content-type", b"text/plain"), (b"content-length", str(len(text)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text})


async def _live(receive: Receive, send: Send) -> None:
    for phase in ("startup", "shutdown"):
        await receive()
        await send({"type": f"lifespan.{phase}.complete"})


def serve_proxy(
    listen: tuple[str, int], superlink: str, certificate: Path | None, tls: tuple[Path, Path] | None
) -> None:
    """Run the proxy until it is told to stop; ``tls``: its own certificate and key."""
    import uvicorn

    own = {} if tls is None else {"ssl_certfile": str(tls[0]), "ssl_keyfile": str(tls[1])}
    uvicorn.run(
        proxy(superlink, certificate), host=listen[0], port=listen[1], log_level="warning", access_log=False,
        server_header=False, ws="none", **own,  # type: ignore[arg-type]
    )  # fmt: skip

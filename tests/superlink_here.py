"""Something on this machine that answers as a SuperLink does, and proxies as hospitals have them before it."""

from __future__ import annotations

import datetime
import http.server
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class Health(http.server.BaseHTTPRequestHandler):
    shift = 0.0
    status = 200

    def do_GET(self) -> None:
        self.send_response_only(self.status)
        when = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=self.shift)
        self.send_header("Date", when.strftime("%a, %d %b %Y %H:%M:%S GMT"))
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def superlink(folder: Path | None = None, shift: float = 0.0, status: int = 200) -> Iterator[int]:
    """Something that answers as a SuperLink, or a proxy before it, does."""
    handler = type("Shifted", (Health,), {"shift": shift, "status": status})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    if folder is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "server.crt", folder / "server.key")
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def tunnels(to: int, refuses: int = 0) -> Iterator[tuple[int, list[str]]]:
    """A hospital's own proxy: whoever asks for a tunnel gets one to a port here, or is refused; and who asked."""
    asked: list[str] = []
    listening = socket.create_server(("127.0.0.1", 0))
    threads: list[threading.Thread] = []

    def begun(work: Callable[..., None], *given: socket.socket) -> None:
        threads.append(threading.Thread(target=work, args=given, daemon=True))
        threads[-1].start()

    def serve() -> None:
        while True:
            try:
                near, _ = listening.accept()
            except OSError:  # the test is over
                return
            begun(tunnel, near)

    def tunnel(near: socket.socket) -> None:
        with near:
            asked.append(near.recv(4096).decode().split("\r\n")[0])
            if refuses:
                near.sendall(f"HTTP/1.1 {refuses} Refused\r\n\r\n".encode())
                return
            with socket.create_connection(("127.0.0.1", to)) as far:
                near.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                back = threading.Thread(target=_pour, args=(far, near), daemon=True)
                back.start()
                _pour(near, far)
                back.join()

    begun(serve)
    try:
        yield listening.getsockname()[1], asked
    finally:
        listening.shutdown(socket.SHUT_RDWR)  # closing alone does not wake who waits for a caller
        listening.close()
        for thread in threads:
            thread.join(timeout=10)


def _pour(one: socket.socket, other: socket.socket) -> None:
    try:
        while data := one.recv(65536):
            other.sendall(data)
    except OSError:
        pass
    with suppress(OSError):  # the other side went first
        other.shutdown(socket.SHUT_WR)

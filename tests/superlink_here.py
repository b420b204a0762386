"""Something on this machine that answers as a SuperLink does, and proxies as hospitals have them before it."""

from __future__ import annotations

import datetime
import http.server
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
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

    def serve() -> None:
        while True:
            try:
                near, _ = listening.accept()
            except OSError:  # the test is over
                return
            asked.append(near.recv(4096).decode().split("\r\n")[0])
            if refuses:
                near.sendall(f"HTTP/1.1 {refuses} Refused\r\n\r\n".encode())
                near.close()
                continue
            far = socket.create_connection(("127.0.0.1", to))
            near.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=_pour, args=(one, other), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield listening.getsockname()[1], asked
    finally:
        listening.close()


def _pour(one: socket.socket, other: socket.socket) -> None:
    try:
        while data := one.recv(65536):
            other.sendall(data)
        other.shutdown(socket.SHUT_WR)
    except OSError:
        pass

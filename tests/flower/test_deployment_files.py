"""The units, the image and the compose files of examples/deployment: they parse, and all that they start exists."""

from __future__ import annotations

import asyncio
import configparser
import http.client
import http.server
import json
import re
import shlex
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import pytest
import typer.main
import uvicorn
import yaml

from leakline.cli import app
from leakline.flower.processes import free_port
from leakline.flower.proxy import proxy

FOLDER = Path(__file__).parents[2] / "examples" / "deployment"
UNITS = sorted(FOLDER.glob("*.service"))
COMPOSE = sorted(FOLDER.glob("compose*.yaml"))
KEPT = ("/etc/leakline", "/srv/leakline", "/var/lib/leakline", "/opt/leakline")
SUPERLINK = ["--host", "--port", "--database", "--enable-supernode-auth", "--disable-runtime-dependency-installation"]
SUPERLINK += ["--ssl-ca-certfile", "--ssl-certfile", "--ssl-keyfile"]


def problem_with(words: list[str]) -> str:
    """Why a command could not be given, or ""."""
    program, rest = Path(words[0]).name, words[1:]
    if program == "flower-superlink":
        return f"options {options}" if (options := [w for w in rest if w.startswith("--")]) != SUPERLINK else ""
    if program != "leakline":
        return f"an unknown program {program}"
    command = typer.main.get_command(app)
    context = click.Context(command, info_name="leakline")
    try:
        while isinstance(command, click.Group):
            _, found, rest = command.resolve_command(context, rest)
            assert found is not None
            command = found
        command.make_context(command.name, rest, parent=context)
    except click.ClickException as error:
        return error.format_message()
    return ""


def unit(path: Path) -> dict[str, list[str]]:
    """What a unit's [Service] sets; keys may come again."""

    class Listed(dict):
        def __setitem__(self, key: str, value: object) -> None:
            if isinstance(value, list) and key in self and isinstance(self[key], list):
                self[key].extend(value)
            else:
                super().__setitem__(key, value)

    parser = configparser.ConfigParser(dict_type=Listed, strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(path)
    assert {"Unit", "Service", "Install"} == set(parser.sections())
    return {key: value.split("\n") for key, value in parser["Service"].items()}


def paths(words: list[str]) -> list[str]:
    return [word for word in words if word.startswith("/")]


def test_the_options_of_flowers_superlink_are_those_it_has():
    from flwr.superlink.cli.flower_superlink import _parse_args_run_superlink

    known = {option for action in _parse_args_run_superlink()._actions for option in action.option_strings}
    assert set(SUPERLINK) <= known


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_a_unit_starts_what_exists_as_another_user_with_data_read_only(path):
    service = unit(path)
    (start,) = service["ExecStart"]
    words = shlex.split(start)
    assert problem_with(words) == ""
    assert all(one.startswith(KEPT) for one in paths(words))
    assert service["User"] == ["leakline"]
    assert service["ProtectSystem"] == ["strict"]
    assert service["NoNewPrivileges"] == ["yes"]
    assert "/srv" not in " ".join(service.get("ReadWritePaths", []))
    if path.stem.endswith("node"):
        assert "/srv/leakline" in service["ReadOnlyPaths"][0].split()
        assert service["RestartPreventExitStatus"] == ["2"]  # what is wrong with a node is not mended by starting again


@pytest.mark.parametrize("path", COMPOSE, ids=lambda path: path.stem)
def test_compose_files_start_what_exists_as_another_user_with_data_read_only(path):
    services = yaml.safe_load(path.read_text())["services"]
    for name, service in services.items():
        assert problem_with([str(word) for word in service["command"]]) == "", name
        assert service["user"] == "10001"
        assert service["read_only"] is True
        mounts = [volume.split(":") for volume in service["volumes"]]
        assert all(mount[1] in KEPT for mount in mounts)
        assert [mount[1] for mount in mounts if mount[2:] != ["ro"]] == ["/var/lib/leakline"]
        inside = paths([str(word) for word in service["command"]])
        assert all(any(word.startswith(mount[1]) for mount in mounts) for word in inside)
        assert ("ports" in service) == (name == "proxy")  # nobody else can be called from outside


def test_the_server_can_be_called_through_the_proxy_alone():
    table = yaml.safe_load((FOLDER / "compose.yaml").read_text())
    assert table["networks"]["inside"] == {"internal": True}
    outside = [name for name, service in table["services"].items() if "outside" in service["networks"]]
    assert outside == ["proxy"]


def test_the_image_is_made_of_the_package_alone_and_runs_as_another_user():
    lines = (FOLDER / "Containerfile").read_text().replace("\\\n", " ").splitlines()
    steps = [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]
    assert [step for step, _ in steps if step == "COPY"] == ["COPY"]
    assert dict(steps)["COPY"] == "wheels/ /wheels/"
    assert dict(steps)["USER"] == "leakline"
    assert "--uid 10001" in dict(steps)["RUN"]
    assert problem_with(json.loads(dict(steps)["CMD"])) == ""
    assert '"$(echo /wheels/leakline-*.whl)[flower]"' in dict(steps)["RUN"]


def test_a_command_that_does_not_exist_would_be_found():
    assert problem_with(["leakline", "flower", "nood", "x"])
    assert problem_with(["leakline", "flower", "node", "x.toml", "--chek"])
    assert problem_with(["flower-superlink", "--insecure"])
    assert problem_with(["bash", "-c", "true"])


# the proxy


class Echo(http.server.BaseHTTPRequestHandler):
    """A SuperLink that says what reached it."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        told = json.dumps([self.path, len(body), body[:4].decode(), self.headers.get("x-signature")]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(told)))
        self.end_headers()
        self.wfile.write(told)

    do_GET = do_DELETE = lambda self: (
        self.send_response(200),
        self.send_header("Content-Length", "0"),
        self.end_headers(),
    )

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def running(superlink: int) -> Iterator[int]:
    port = free_port()
    config = uvicorn.Config(proxy(f"127.0.0.1:{superlink}", None), port=port, log_level="critical", ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
    thread.start()
    while not server.started:
        threading.Event().wait(0.02)
    try:
        yield port
    finally:
        server.should_exit = True
        thread.join(10)


def ask(port: int, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.putrequest(method, path, skip_host=True)
    for name, value in {"Host": "x", "Content-Length": str(len(body)), **headers}.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders(body)
    answer = connection.getresponse()
    text = answer.status, answer.read()
    connection.close()
    return text


REFUSED = [
    ("POST", "/v1/control/start-run"), ("POST", "/v1/runtime/acquire-task"), ("GET", "/docs"), ("GET", "/openapi.json"),
    ("POST", "/v1/fleet/../control/start-run"), ("POST", "/v1/fleet/%2e%2e/control/start-run"), ("POST", "/v1/fleet/"),
    ("POST", "/v1/fleet//x"), ("POST", "/v1/fleet/x?y=1#/../"), ("GET", "/v1/fleet/get-run"), ("POST", "/health"),
    ("DELETE", "/v1/fleet/get-run"), ("POST", "//v1/fleet/get-run"), ("POST", "/V1/FLEET/get-run"),
]  # fmt: skip


def test_nodes_reach_the_fleet_api_and_nobody_anything_else():
    upstream = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    threading.Thread(target=upstream.serve_forever, daemon=True).start()
    try:
        with running(upstream.server_address[1]) as port:
            large = b"head" + bytes(3_000_000)
            status, told = ask(port, "POST", "/v1/fleet/push-object", large, x_signature="s")
            assert (status, json.loads(told)) == (200, ["/v1/fleet/push-object", len(large), "head", "s"])
            assert ask(port, "GET", "/health")[0] == 200
            for method, path in REFUSED:
                status, told = ask(port, method, path)
                allowed = status == 200 and json.loads(told)[0] == "/v1/fleet/x"  # a query is not handed on
                assert status == 403 or (allowed and "?" in path), (method, path)
    finally:
        upstream.shutdown()
        upstream.server_close()


def test_a_superlink_that_is_not_there_is_said_to_be():
    with running(free_port()) as port:
        status, told = ask(port, "POST", "/v1/fleet/get-run", b"x")
    assert (status, told) == (502, b"no SuperLink answers behind this proxy\n")


def test_two_requests_in_one_are_two_requests():
    """What is smuggled behind a body is looked at like everything else."""
    upstream = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    threading.Thread(target=upstream.serve_forever, daemon=True).start()
    first = b"POST /v1/fleet/get-run HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx"
    second = b"POST /v1/control/start-run HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    try:
        with running(upstream.server_address[1]) as port, socket.create_connection(("127.0.0.1", port), 20) as line:
            line.sendall(first + second)
            said = b""
            while part := line.recv(65536):
                said += part
        assert re.findall(rb"HTTP/1.1 (\d+)", said) == [b"200", b"403"]
    finally:
        upstream.shutdown()
        upstream.server_close()

"""`leakline flower register` and `proxy`: what the coordinator of a consortium does at the SuperLink."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from leakline.cli.console import err, out
from leakline.cli.flower import CertificateOption, link_to
from leakline.errors import LeaklineError

Superlink = Annotated[str, typer.Option(help="The SuperLink, as host:port.")]


def register(
    keys: Annotated[list[Path], typer.Argument(help="Public keys of nodes, such as north.key.pub.")],
    superlink: Superlink,
    certificate: CertificateOption = None,
) -> None:
    """Let nodes with these keys join; SuperLinks that were started with --enable-supernode-auth take no others."""
    from leakline.flower import need_flower

    need_flower()
    from leakline.flower.processes import flwr
    from leakline.flower.reach import check
    from leakline.flower.transport.submit import NAME, talking

    link = link_to(superlink, certificate, insecure=False)
    check(link.address, link.certificate)
    with talking(link) as env:
        for key in keys:
            if not key.is_file():
                raise LeaklineError(f"there is no file {key.name}", "leakline flower register", "check the path")
            flwr(["supernode", "register", str(key), NAME], env)
            out.print(f"{key.name}: registered")


def proxy(
    superlink: Superlink,
    tls: Annotated[tuple[Path, Path], typer.Option("--tls", help="The proxy's own certificate and key.")],
    certificate: CertificateOption = None,
    listen: Annotated[str, typer.Option(help="Where nodes find it, as host:port.")] = "0.0.0.0:8443",  # noqa: S104
) -> None:
    """Let nodes reach the fleet API of a SuperLink on this machine, and nobody anything else."""
    from leakline.flower import need_flower

    need_flower()
    from leakline.flower.proxy import serve_proxy

    link = link_to(superlink, certificate, insecure=False)
    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit():
        raise LeaklineError(f"cannot read {listen!r}", "--listen", "host:port, such as 0.0.0.0:8443")
    for file in tls:
        if not file.is_file():
            raise LeaklineError(f"there is no file {file.name}", "--tls", "the certificate, then its key")
    logging.basicConfig(format="%(message)s")
    err.print(f"nodes may reach the fleet API of {link.address} at {listen}")
    serve_proxy((host, int(port)), link.address, link.certificate, tls)

"""Whether a SuperLink can be reached, and if not, why, in one line: Flower's own words are the same for all of it."""

from __future__ import annotations

import datetime
import email.utils
import re
import socket
import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from leakline.errors import LeaklineError

AHEAD, BEHIND = 5.0, 305.0
"""How far a node's clock may be before and behind the SuperLink's, seconds: Flower turns away what is signed beyond."""
_TOO_OLD, _TOO_YOUNG, _OTHER_NAME = 10, 9, (62, 64)
"""What OpenSSL calls a certificate that has expired, one that is not valid yet, one for another name or IP address."""


@dataclass(frozen=True)
class Reached:
    """How a SuperLink answered: ``problem`` and ``fix`` in words ("": it did); ``ahead``: our clock before its."""

    problem: str = ""
    fix: str = ""
    ahead: float | None = None

    @property
    def clock(self) -> str:
        """What is wrong with the clocks, in one line; "" where nothing is, or nobody can say."""
        if self.ahead is None or -BEHIND < self.ahead < AHEAD:
            return ""
        side = "before" if self.ahead > 0 else "behind"
        return f"this clock is {abs(self.ahead):.0f} s {side} the SuperLink's, and what it signs is turned away"


def reach(address: str, certificate: Path | None, timeout: float = 10.0) -> Reached:
    """Ask a SuperLink, or the proxy before it, whether it is there; as Flower does, through a proxy if one is set."""
    try:
        context = None if certificate is None else ssl.create_default_context(cafile=str(certificate))
    except (OSError, ValueError):
        return Reached("the authority's certificate cannot be read", "a file of PEM certificates")
    scheme = "http" if context is None else "https"
    local = address.rpartition(":")[0] in ("127.0.0.1", "localhost")
    proxies = urllib.request.ProxyHandler({} if local else None)
    opener = urllib.request.build_opener(proxies, urllib.request.HTTPSHandler(context=context))
    try:
        with opener.open(f"{scheme}://{address}/health", timeout=timeout) as answer:
            return Reached(ahead=_ahead(answer.headers.get("Date")))
    except urllib.error.HTTPError as error:  # a proxy that lets nodes through to their own paths only
        if error.code in (407, 502, 503, 504):
            return Reached(
                f"a proxy is there (it says {error.code}), and no SuperLink behind it", "start the SuperLink"
            )
        return Reached(ahead=_ahead(error.headers.get("Date")))
    except (OSError, ValueError) as error:
        return _why(error.reason if isinstance(error, urllib.error.URLError) else error, address)


def check(address: str, certificate: Path | None) -> None:
    """Raise what hinders reaching a SuperLink."""
    if (reached := reach(address, certificate)).problem:
        raise LeaklineError(reached.problem, address, reached.fix)


def _why(reason: object, address: str) -> Reached:
    host = address.rpartition(":")[0]
    through = " (through the proxy of https_proxy)" if "https" in urllib.request.getproxies() else ""
    if refused := re.match(r"Tunnel connection failed: (\d+)", str(reason)):
        return Reached(
            f"the proxy of https_proxy does not let this machine through to {host} (it says {refused[1]})",
            "have it allow the SuperLink's name and port, without opening TLS",
        )
    if isinstance(reason, ssl.SSLCertVerificationError):
        if reason.verify_code in _OTHER_NAME:
            return Reached(
                f"the certificate there is for another name than {host}",
                "use the name that it was made for, or have one made with this name in subjectAltName",
            )
        if reason.verify_code in (_TOO_OLD, _TOO_YOUNG):
            which = "has expired" if reason.verify_code == _TOO_OLD else "is not valid yet"
            return Reached(f"by this machine's clock the certificate there {which}", "set the clock, or renew it")
        return Reached(
            f"nobody that we know vouches for the certificate there{through}",
            "give the authority's certificate; a proxy in between that opens TLS must not",
        )
    if isinstance(reason, ssl.SSLError):
        return Reached(
            f"what answers there speaks no TLS{through}", "is it the right port? --insecure needs both sides"
        )
    if isinstance(reason, socket.gaierror):
        return Reached(f"nobody knows where {host} is", "check the name, and this machine's DNS")
    return Reached(
        f"nothing answers there{through}", "is the SuperLink up, and does a firewall let this machine through?"
    )


def _ahead(date: str | None) -> float | None:
    """How far our clock is before the one that wrote a date."""
    try:
        told = email.utils.parsedate_to_datetime(date or "")
        return (datetime.datetime.now(datetime.UTC) - told).total_seconds()
    except (TypeError, ValueError):
        return None

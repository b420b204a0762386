"""Whether a SuperLink is reached, through a hospital's own proxy too, and a line for each way in which it is not."""

from __future__ import annotations

import datetime
import socket
import types

import pytest

from leakline.flower.processes import environment, free_port
from leakline.flower.reach import Reached, reach
from leakline.flower.trial.certificates import make_certificates
from superlink_here import superlink, tunnels


def test_a_superlink_that_answers_is_reached_with_its_clock(certificates):
    with superlink(certificates) as port:
        reached = reach(f"localhost:{port}", certificates / "ca.crt")
    assert (reached.problem, reached.clock) == ("", "")
    assert abs(reached.ahead) < 3
    with superlink(certificates, status=404) as port:  # a proxy that lets the nodes' own paths through and nothing else
        assert reach(f"localhost:{port}", certificates / "ca.crt").problem == ""


def test_every_way_not_to_reach_a_superlink_has_its_own_line(certificates, tmp_path_factory, monkeypatch):
    others = tmp_path_factory.mktemp("others")
    make_certificates(others)
    monkeypatch.setattr("socket.getaddrinfo", _resolving(socket.getaddrinfo))
    with superlink(certificates) as port:
        for other in OTHERS:
            assert f"for another name than {other}" in reach(f"{other}:{port}", certificates / "ca.crt").problem
        assert "nobody that we know vouches" in reach(f"localhost:{port}", others / "ca.crt").problem
        assert (
            reach(f"localhost:{port}", certificates / "server.key").problem
            == "the authority's certificate cannot be read"
        )
    with superlink() as port:
        assert "speaks no TLS" in reach(f"localhost:{port}", certificates / "ca.crt").problem
    assert "nothing answers there" in reach(f"localhost:{free_port()}", certificates / "ca.crt").problem
    assert "nobody knows where" in reach("no-such-host.invalid:1", certificates / "ca.crt").problem
    with superlink(status=502) as port:
        assert "a proxy is there (it says 502), and no SuperLink behind it" in reach(f"localhost:{port}", None).problem


OTHERS = ("other.example", "10.77.1.1")


def _resolving(real):
    """Knows names and addresses that are this machine's, and no name that cannot be."""

    def resolve(host, *rest, **more):
        if host == "no-such-host.invalid":
            raise socket.gaierror(-2, "Name or service not known")
        return real("127.0.0.1" if host in OTHERS else host, *rest, **more)

    return resolve


@pytest.mark.parametrize(("days", "said"), [(-400, "has expired"), (400, "is not valid yet")])
def test_a_certificate_that_the_clock_does_not_fit_is_said_to_be_one(days, said, tmp_path, monkeypatch):
    made_at = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
    then = types.SimpleNamespace(now=lambda zone: made_at)
    shifted = types.SimpleNamespace(datetime=then, UTC=datetime.UTC, timedelta=datetime.timedelta)
    monkeypatch.setattr("leakline.flower.trial.certificates.datetime", shifted)
    make_certificates(tmp_path)
    with superlink(tmp_path) as port:
        reached = reach(f"localhost:{port}", tmp_path / "ca.crt")
    assert reached.problem == f"by this machine's clock the certificate there {said}"


@pytest.mark.parametrize(
    ("ahead", "said"), [(0.0, ""), (4.0, ""), (-300.0, ""), (8.0, "8 s before"), (-400.0, "400 s behind")]
)
def test_a_clock_that_is_off_is_said(ahead, said):
    clock = Reached(ahead=ahead).clock
    assert said in clock
    assert bool(clock) == bool(said)


HERE = "LOCALHOST"
"""This machine by a name that its certificate has, and that is not known to need no proxy."""


@pytest.mark.parametrize("name", ["https_proxy", "HTTPS_PROXY"])
def test_a_hospitals_proxy_is_used_and_its_failures_have_lines(name, certificates, tmp_path_factory, monkeypatch):
    others = tmp_path_factory.mktemp("others")
    make_certificates(others)
    through = "(through the proxy of https_proxy)"
    with superlink(certificates) as port, superlink(others) as opened:
        with tunnels(port) as (proxy, asked):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy}")
            reached = reach(f"{HERE}:{port}", certificates / "ca.crt")
            assert (reached.problem, reached.clock) == ("", "")
            assert asked == [f"CONNECT {HERE}:{port} HTTP/1.0"] or asked == [f"CONNECT {HERE}:{port} HTTP/1.1"]
            assert reach(f"localhost:{port}", certificates / "ca.crt").problem == ""
            assert len(asked) == 1  # a node's own helpers are called without it
            assert set(environment(certificates / "home")["no_proxy"].split(",")) >= {"127.0.0.1", "localhost"}
        with tunnels(opened) as (proxy, _):  # it opens TLS, with an authority of its own
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy}")
            problem = reach(f"{HERE}:{port}", certificates / "ca.crt").problem
            assert problem == f"nobody that we know vouches for the certificate there {through}"
        with tunnels(port, refuses=403) as (proxy, _):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy}")
            problem = reach(f"{HERE}:{port}", certificates / "ca.crt").problem
            assert problem == f"the proxy of https_proxy does not let this machine through to {HERE} (it says 403)"
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
        assert reach(f"{HERE}:{port}", certificates / "ca.crt").problem == f"nothing answers there {through}"

"""Handing a study to a SuperLink as an app, waiting for its end, and telling the truth about it."""

from __future__ import annotations

import contextlib
import json
import secrets
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from leakline.errors import ClientLost, LeaklineError, StudyError
from leakline.flower.app_files import export
from leakline.flower.processes import environment, flwr, healthy
from leakline.flower.reach import check
from leakline.flower.transport.serving import RECORD, SENT
from leakline.flower.transport.turns import as_node
from leakline.foreign import Foreign
from leakline.study.cells import Cell, Study
from leakline.study.claims import others
from leakline.study.files import make_folder, read_json, write_json
from leakline.study.scenario import Share
from leakline.study.sharing import task_of
from leakline.study.spec import parse
from leakline.study.train import Progress, silent

NAME = "leakline"
"""What our connection is called in Flower's configuration."""
ENDED = ("finished:completed", "finished:failed", "finished:stopped")
NOTICED = 60.0
"""Seconds in which a SuperLink that was killed and came back notices that an app died with it: it misses two of its
signs of life. Until then it says that the app runs."""


@dataclass(frozen=True)
class Link:
    """A SuperLink: its address, and the certificate by which it is known (None: no encryption)."""

    address: str
    certificate: Path | None = None


@dataclass(frozen=True)
class Asked:
    """A study as it was asked for: what a ServerApp needs to read the same."""

    text: str
    preset: str = ""
    sets: tuple[str, ...] = ()
    only: tuple[str, ...] = ()

    def study(self, share: Share = task_of) -> Study:
        """The study with clients that train one by one, as they do on Flower."""
        study = parse(self.text, preset=self.preset, sets=self.sets, share=share, trust=True).only(self.only)
        return replace(study, cells=tuple(one_by_one(cell) for cell in study.cells))


def one_by_one(cell: Cell) -> Cell:
    """A cell whose clients train one by one."""
    return replace(cell, federation=lambda: as_node(cell.federation()))


def await_health(link: Link, process: subprocess.Popen[bytes], log: Path, seconds: float = 90.0) -> None:
    """Wait until a SuperLink that was just started answers."""
    until = time.monotonic() + seconds
    while not healthy(link.address, link.certificate):
        if process.poll() is not None or time.monotonic() > until:
            lines = log.read_text(errors="replace").strip().splitlines()[-3:]
            raise LeaklineError("the SuperLink did not start: " + " | ".join(lines)[-300:], link.address, "see its log")
        time.sleep(0.3)


def connect(link: Link, home: Path) -> dict[str, str]:
    """Write Flower's configuration for a SuperLink; returns the environment that uses it."""
    env = environment(home)
    secured = (
        "insecure = true" if link.certificate is None else f"root-certificates = {json.dumps(str(link.certificate))}"
    )
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "{NAME}"\n\n[superlink.{NAME}]\naddress = {json.dumps(link.address)}\n{secured}\n',
        encoding="utf-8",
    )
    return env


@dataclass(frozen=True)
class Sent:
    """A study that was handed to a SuperLink: what was asked, where, and by which names Flower and we know it."""

    asked: Asked
    link: Link
    token: str
    run: str = ""

    def keep(self, out: Path) -> Sent:
        """Write it down in the run directory, where the ServerApp looks for it: so it knows that we see its results."""
        make_folder(out)
        asked, certificate = asdict(self.asked), self.link.certificate
        table = {"token": self.token, "run": self.run, "address": self.link.address, "asked": asked}
        write_json(out / SENT, {**table, "certificate": "" if certificate is None else str(certificate)})
        return self

    @classmethod
    def kept(cls, out: Path) -> Sent:
        """What was handed over last for a run directory."""
        if not (out / SENT).is_file():
            raise StudyError("nothing was handed to a SuperLink from here", out.name, "leakline run STUDY --on flower")
        table = read_json(out / SENT)
        try:
            told = table["asked"]
            asked = Asked(told["text"], told["preset"], tuple(told["sets"]), tuple(told["only"]))
            certificate = Path(table["certificate"]) if table["certificate"] else None
            return cls(asked, Link(table["address"], certificate), table["token"], table["run"])
        except (KeyError, TypeError, AttributeError) as error:
            raise StudyError(
                "this submission cannot be read", f"{out.name}/{SENT}", "give the command again"
            ) from error


@contextlib.contextmanager
def talking(link: Link) -> Iterator[dict[str, str]]:
    """An environment in which Flower's command line talks to a SuperLink."""
    with tempfile.TemporaryDirectory(prefix="leakline-", ignore_cleanup_errors=True) as folder:
        yield connect(link, Path(folder) / "home")


def submit(
    asked: Asked,
    name: str,
    link: Link,
    out: Path,
    deadline: float,
    progress: Progress = silent,
    options: Sequence[str] = (),
    wait: float = 60.0,
    code: Sequence[Foreign] = (),
) -> dict[str, Any]:
    """Hand a study to a SuperLink, its own ``code`` with it, and wait for its end; returns what the ServerApp wrote."""
    check(link.address, link.certificate)
    with talking(link) as env, tempfile.TemporaryDirectory(prefix="leakline-", ignore_cleanup_errors=True) as folder:
        _nothing_runs(out, link, env)
        sent = Sent(asked, link, secrets.token_hex(8)).keep(out)
        settings: dict[str, str | float] = {
            "out": str(out.absolute()), "folder": str(Path.cwd()), "submission": sent.token,
            "deadline": float(deadline), "wait": float(wait),
        }  # fmt: skip
        app = export(
            asked.text, Path(folder) / "app", name=name, preset=asked.preset, sets=asked.sets, only=asked.only,
            settings=settings, code=code,
        )  # fmt: skip
        sent = replace(sent, run=str(flwr(["run", str(app), NAME, *options], env)["run-id"])).keep(out)
        try:
            return await_end(sent, out, env, progress)
        except KeyboardInterrupt:
            with contextlib.suppress(LeaklineError):  # nobody waits for it any more
                if healthy(link.address, link.certificate):
                    flwr(["stop", sent.run, NAME], env, timeout=30)
            raise


def await_end(sent: Sent, out: Path, env: Mapping[str, str], progress: Progress = silent) -> dict[str, Any]:
    """Wait for the end of what was handed over; returns what the ServerApp wrote."""
    status = _ended(sent.run, env, sent.link, out, sent.token, progress)
    record = _record(out, sent.token)
    if record is None:
        raise StudyError(
            f"Flower says {status}, and nothing was trained: results are kept where the ServerApp runs, "
            f"and it does not see {out.name}",
            f"run {sent.run}",
            "give this command on the SuperLink's machine, as its user, or --out on a disk that both see",
        )
    if status != "finished:completed" and not record["error"] and not any(c["error"] for c in record["cells"]):
        raise ClientLost(
            f"the server's app was lost: Flower says {status}",
            f"run {sent.run}",
            "give the same command again: it goes on after the last round",
        )
    if record["error"]:
        raise StudyError(record["error"])
    return record


def stop_run(out: Path) -> str:
    """End what was handed over last for a run directory; returns how Flower calls its end."""
    sent = Sent.kept(out)
    check(sent.link.address, sent.link.certificate)
    with talking(sent.link) as env:
        if (status := status_of(sent.run, env)) not in ENDED:
            flwr(["stop", sent.run, NAME], env, timeout=30)
            status = status_of(sent.run, env)
    return status


def status_of(run: str, env: Mapping[str, str]) -> str:
    """How a run stands, in Flower's words."""
    return str(flwr(["list", NAME, "--run-id", run], env)["runs"][0]["status"])


def _nothing_runs(out: Path, link: Link, env: Mapping[str, str]) -> None:
    """Refuse a second submission for a run directory while the first is at work there.

    Where nobody is seen at work in the directory, what Flower says may be of an app that died: that shows soon.
    """
    if not (out / SENT).is_file() or (before := Sent.kept(out)).link != link or not before.run:
        return
    until = time.monotonic() + NOTICED
    try:
        while (status := status_of(before.run, env)) not in ENDED and not others(out) and time.monotonic() < until:
            time.sleep(NOTICED / 20)
    except LeaklineError:  # a SuperLink that was started anew does not know it any more
        return
    if status not in ENDED:
        raise StudyError(
            f"this study was handed over before and is at work (run {before.run}: {status})",
            out.name,
            f"`leakline flower attach {out}` watches it, `leakline flower stop {out}` ends it",
        )


def _ended(
    run: str, env: Mapping[str, str], link: Link, out: Path, token: str, progress: Progress, every: float = 30.0
) -> str:
    """Watch a run until Flower says that it ended: its own command line exits with 0 even where the run failed.

    Flower is asked more often while the ServerApp has written nothing: it may run where nobody here will see it.
    """
    asked, misses = time.monotonic(), 0
    while True:
        record = _record(out, token)
        _show(record, out, progress)
        patience = every if record is not None else every / 3
        if (record is not None and record.get("done")) or time.monotonic() - asked > patience:
            asked = time.monotonic()
            try:
                status = status_of(run, env)
                misses = 0
            except LeaklineError:
                misses += 1
                if misses >= 3 or not healthy(link.address, link.certificate):
                    raise ClientLost(
                        "the SuperLink no longer answers",
                        f"run {run}",
                        "start it again and give the same command: it goes on after the last round",
                    ) from None
                status = ""
            if status in ENDED:
                return status
        time.sleep(0.5)


def _record(out: Path, token: str) -> dict[str, Any] | None:
    path = out / RECORD
    if not path.is_file():
        return None
    record = read_json(path)
    return record if record.get("submission") == token else None


def _show(record: Mapping[str, Any] | None, out: Path, progress: Progress) -> None:
    if record is None or not record["cells"] or "run" not in record["cells"][-1]:
        return
    cell = record["cells"][-1]
    lines = out / "runs" / cell["run"] / "rounds.jsonl"
    if lines.is_file():
        progress(cell["name"], lines.read_bytes().count(b"\n"), int(cell["rounds"]), {})

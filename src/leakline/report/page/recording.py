"""The page of a recording: what was recorded, what the rounds show, what attacks got. One file, no network."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from leakline.errors import LeaklineError
from leakline.recordings.checks import check_recording
from leakline.recordings.recording import Recording
from leakline.report.gallery.gallery import MOST_BYTES
from leakline.report.gallery.png import clean_png
from leakline.report.page.html import asset, policy, template, write_page
from leakline.study.files import is_there, read_json
from leakline.study.media import read_media
from leakline.text import number

FINDINGS = "findings.json"
MOST_IMAGES = 40
MOST_ROUNDS = 200


def build_recording_report(root: Path, out: Path | None = None, shareable: bool = False) -> Path:
    """Write the report of a recording to ``out`` (default: ``report.html`` in it) and say where it is."""
    from markupsafe import Markup

    from leakline import __version__

    recording, style = Recording(root), asset("page.css")
    findings, claimed = _findings(recording)
    pictures = sorted((root / "media").rglob("strip.png"))
    page = template("recording.html.jinja").render(
        name=root.absolute().name, version=__version__, style=Markup(style), policy=policy([], [style]),
        about=_about(recording), findings=findings, claimed=claimed,
        attacks=_unnamed(_attacks(recording)) if shareable else _attacks(recording),
        rounds=[_round(r, shareable) for r in recording.records()[:MOST_ROUNDS]],
        images=[] if shareable else [shown for p in pictures[:MOST_IMAGES] if (shown := _image(p, root))],
        left_out=len(pictures) if shareable else 0,
    )  # fmt: skip
    return write_page(page, out if out is not None else root / "report.html")


def _about(recording: Recording) -> list[tuple[str, str]]:
    layout, held = recording.layout(), recording.indices()
    clients = {c for r in recording.records() for c in r.get("cohort", ())}
    known = ", ".join(f"{k} {v}" for k, v in recording.known.items()) or "nothing was said"
    found = [
        ("trained by", recording.engine),
        ("seen from", f"the {recording.seat}'s seat"),
        ("rounds kept", f"{len(held)} of {len(recording.records())} (first {held[0]}, last {held[-1]})"),
        ("clients", str(len(clients))),
        ("values that travel", f"{layout.size:,} in {len(layout.entries)} arrays, {len(layout.buffers)} not trained"),
        ("local plan, as known", known),
    ]
    return found + ([("not recorded", ", ".join(recording.left_out))] if recording.left_out else [])


def _findings(recording: Recording) -> tuple[list[dict[str, Any]], str]:
    """What `leakline audit` found, or what can be said without any claim."""
    path = recording.path / FINDINGS
    if is_there(path):
        stored = read_json(path)
        claims = stored.get("claimed")
        said = {k: v for k, v in claims.items() if v is not None} if isinstance(claims, dict) else {}
        found = stored.get("findings")
        rows = [
            {k: str(one.get(k, "")) for k in ("check", "verdict", "text")}
            for one in (found if isinstance(found, list) else [])
            if isinstance(one, dict)
        ]
        return rows, ", ".join(f"{k} {v}" for k, v in said.items()) or "none"
    claim = recording.claimed().as_dict()
    words = ", ".join(f"{k} {v}" for k, v in claim.items())
    return [finding.as_dict() for finding in check_recording(recording)], words or "none"


def _attacks(recording: Recording) -> list[dict[str, str]]:
    found = []
    for line in recording.run.attacks():
        if line.get("measure") == "none":
            continue
        value, low, high = line.get("value"), line.get("low"), line.get("high")
        span = f" [{number(low, 3)}, {number(high, 3)}]" if _real(low) and _real(high) else ""
        found.append(
            {
                "by": str(line.get("by", "")),
                "round": str(line.get("round", "")),
                "client": str(line.get("client", "")),
                "measure": str(line.get("measure", "")),
                "value": (number(value, 3) if _real(value) else "") + span,
                "chance": number(line["chance"], 3) if _real(line.get("chance")) else "",
                "note": str(line.get("note", "")),
            }
        )
    return found


def _unnamed(attacks: list[dict[str, str]]) -> list[dict[str, str]]:
    """The same with numbers for names, and without notes, which may quote anything."""
    names = dict.fromkeys(row["client"] for row in attacks if row["client"])
    numbers = {name: f"client {i}" for i, name in enumerate(names, start=1)}
    return [{**row, "client": numbers.get(row["client"], ""), "note": ""} for row in attacks]


def _round(record: dict[str, Any], shareable: bool) -> dict[str, str]:
    metrics = record.get("metrics", {})
    dropped = record.get("dropped", ())
    return {
        "round": str(record.get("round", "")),
        "clients": str(len(record.get("cohort", ()))),
        "dropped": str(len(dropped) or "") if shareable else "; ".join(f"{c}: {r}" for c, r in dropped),
        "kept": str(record.get("left_out") or f"{len(record.get('kept', ()))} files"),
        "figures": ", ".join(f"{k} {number(v, 3)}" for k, v in metrics.items() if _real(v)),
    }


def _real(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _image(path: Path, root: Path) -> dict[str, str] | None:
    # The name decides nothing; what is inside is shown as an image or not at all.
    try:
        data = clean_png(read_media(path, root, MOST_BYTES))
    except LeaklineError:
        return None
    source = "data:image/png;base64," + base64.b64encode(data).decode()
    return {"name": " ".join(path.parts[-4:-1]), "source": source}

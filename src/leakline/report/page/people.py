"""What attacks on records mean for single patients, in sentences: one for each attack, its seat in plain words."""

from __future__ import annotations

from collections.abc import Sequence

from leakline.cards import OBSERVERS
from leakline.readings import Reading
from leakline.results import Setting


def patient_words(settings: Sequence[Setting]) -> list[str]:
    """Who can be told apart, and how often the worst off is: of every attack the run in which most are."""
    runs: dict[str, list[dict[str, Reading]]] = {}
    for cell in (cell for setting in settings for cell in setting.cells):
        for by in dict.fromkeys(r.by for r in cell.attacks if r.measure == "patients-exposed"):
            runs.setdefault(by, []).append({r.measure: r for r in cell.attacks if r.by == by})
    return [_sentence(by, max(found, key=_exposed)) for by, found in runs.items() if "worst-patient" in found[0]]


def _exposed(run: dict[str, Reading]) -> tuple[float, float]:
    return run["patients-exposed"].value, run["worst-patient"].value


def _sentence(by: str, run: dict[str, Reading]) -> str:
    share, worst = run["patients-exposed"], run["worst-patient"]
    about, n = share.about, share.n or 0
    count, worlds = round(share.value * n), round(float(about.get("worlds", 0)))
    who = "patients" if about.get("known") else "records (nobody says whose they are)"
    seat = str(about.get("seat", ""))
    where = f"{OBSERVERS.get(seat, seat)} ({by})" if seat else by
    start = f"Seen by {where}:"
    if not count:
        none = "" if float(about.get("ceiling", 1)) > 0.5 else f", and with {worlds} federations nobody could be"
        return f"{start} none of {n} {who} can be told apart at a level of 95 % that holds for all at once{none}."
    sure = f"at least {100 * (worst.low or 0):.0f} of 100 times, which is the most that so few can prove"
    at_best = (worst.low or 0) >= float(about.get("ceiling", 1)) - 1e-9
    bound = sure if at_best else f"at least {100 * (worst.low or 0):.0f} of 100 times"
    return (
        f"{start} {count} of {n} {who} can be told apart with 95 % confidence for all at once; the worst is found in "
        f"{round(worst.value * worlds)} of {worlds} federations ({bound})."
    )

"""What became of paper 001's conclusions. Its Table II is settings, which are put in and not found: no verdict."""

from __future__ import annotations

from collections.abc import Mapping

from leakline.papers.gradient_inversion.claims import NOT_RUN, claims
from leakline.report import verdicts as verdict
from leakline.report.verdicts import Row, Verdicts
from leakline.results import Results

WORDS = {"yes": verdict.REPRODUCED, "no": verdict.NOT_REPRODUCED, "open": verdict.UNDECIDED}


def verdicts(stores: Mapping[str, Results]) -> Verdicts:
    """The conclusions by the rule of `claims.claims`, with n and interval in their own column."""
    rows = []
    for claim in claims(stores["gradient-inversion"]):
        if claim.ours == NOT_RUN:
            rows.append(Row(claim.what, claim.paper))
            continue
        word, _, note = claim.agrees.partition(" ")
        judged = WORDS.get(word, verdict.UNDECIDED)
        note = note.strip("()")
        rows.append(Row(claim.what, claim.paper, claim.ours, "with each figure", None, claim.seeds, judged, note))
    return {"What the paper concludes": rows}

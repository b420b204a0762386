"""What became of paper 001's conclusions. Its Table II is settings, which are put in and not found: no verdict."""

from __future__ import annotations

from collections.abc import Mapping

from leakline.papers.gradient_inversion.claims import NOT_RUN, headline
from leakline.report import verdicts as verdict
from leakline.report.verdicts import Row, Verdicts
from leakline.results import Results

WORDS = {"yes": verdict.REPRODUCED, "no": verdict.NOT_REPRODUCED, "open": verdict.UNDECIDED}


def verdicts(stores: Mapping[str, Results]) -> Verdicts:
    """The conclusions by the rule of `claims.headline`, with n and interval in their own column."""
    results = stores["gradient-inversion"]
    seeds = len({cell.labels.get("seed") for cell in results.finished.cells}) or None
    rows = []
    for claim, paper, ours, agrees in headline(results).rows:
        if ours == NOT_RUN:
            rows.append(Row(str(claim), str(paper)))
            continue
        word, _, note = str(agrees).partition(" ")
        judged = WORDS.get(word, verdict.UNDECIDED)
        rows.append(Row(str(claim), str(paper), str(ours), "with each figure", None, seeds, judged, note.strip("()")))
    return {"What the paper concludes": rows}

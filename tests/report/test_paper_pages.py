"""Pages of the papers: the rule of the verdicts, rows for what was not run, the same bytes when made again."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest

from leakline.errors import LeaklineError
from leakline.papers.metric_privacy.gaps import Pooled
from leakline.report.paper_pages import BEGIN, END, pages, put, summary
from leakline.report.papers import papers
from leakline.report.verdicts import (
    CANNOT_BE,
    NOT_REPRODUCED,
    NOT_RUN,
    REPRODUCED,
    UNDECIDED,
    VERDICTS,
    Row,
    bound_row,
    claim_row,
    nothing,
    number_row,
    rows_of,
    tally,
)
from leakline.results import Estimate
from leakline.results.archive import read_archive
from leakline.results.estimate import estimate
from leakline.results.table import Table

NARROW, WIDE, ALONE = Estimate(0.9, 0.01, 0.88, 0.92, 5), Estimate(0.9, 0.2, 0.5, 1.0, 2), Estimate(0.9)


@pytest.mark.parametrize(
    ("paper", "ours", "verdict"),
    [
        (0.91, NARROW, REPRODUCED),
        ("0.930 ± 0.010", NARROW, REPRODUCED),  # two spreads reach down to 0.91
        (0.95, NARROW, NOT_REPRODUCED),
        (0.95, WIDE, UNDECIDED),  # it meets everything, and so tells nothing
        (0.2, WIDE, NOT_REPRODUCED),
        (0.9, ALONE, UNDECIDED),
        ("38.24 ± 1.38 (!)", Estimate(30.0, 1.0, 29.0, 31.0, 3), CANNOT_BE),
        (0.9, None, NOT_RUN),
        (12, 12, REPRODUCED),
        (12, 13, NOT_REPRODUCED),
        (12, "2 of 3 seeds got there", UNDECIDED),
        (0.9, "0.900 ± 0.010", UNDECIDED),  # one seed's spread over its rounds
    ],
)
def test_a_number_is_judged_by_our_interval(paper: object, ours: object, verdict: str) -> None:
    row = number_row("x", paper, ours, 640)
    assert row.verdict == verdict
    assert (row.note == "one seed") == (ours is ALONE or ours == "0.900 ± 0.010")
    assert row.ours
    assert (row.ours == NOT_RUN) == (verdict == NOT_RUN)


def test_a_number_of_another_size_is_shown_and_not_judged() -> None:
    row = number_row("x", 0.91, NARROW, 640, "rounds 12, the paper 20")
    assert (row.verdict, row.ours, row.note) == (UNDECIDED, "0.900", "rounds 12, the paper 20")
    assert number_row("x", 0.91, None, 640, "rounds 12, the paper 20").verdict == NOT_RUN


def test_a_claim_is_judged_by_its_side() -> None:
    above, below, both = (Estimate(m, 0.1, m - 0.2, m + 0.2, 3) for m in (0.3, -0.3, 0.1))
    assert [claim_row("x", "+", e).verdict for e in (above, below, both, Estimate(0.3), None)] == [
        REPRODUCED, NOT_REPRODUCED, UNDECIDED, UNDECIDED, NOT_RUN,
    ]  # fmt: skip
    assert bound_row("x", 4.07, 4.05, 3.95, 100, 0.25).verdict == REPRODUCED
    assert bound_row("x", 0.94, 1.3, 1.2, 100, 0.25).verdict == NOT_REPRODUCED


def test_rows_of_a_table_with_both_columns() -> None:
    table = Table("t", ("strategy", "vanilla (paper)", "vanilla (ours)", "extra (ours)"), (("FedAvg", 0.9, NARROW, 1),))
    (row,) = rows_of(table, 640)
    assert (row.what, row.verdict, row.n, row.seeds) == ("FedAvg, vanilla", REPRODUCED, 640, 5)


def test_the_sign_test_is_the_binomials() -> None:
    assert str(Pooled(None, estimate([0.1] * 12), 11, 12, 0.00634765625)) == "11 of 12 above 0, p = 0.006"
    assert math.comb(12, 11) * 2 / 2**12 + 2 / 2**12 == 0.00634765625


def test_every_paper_has_rows_and_without_stores_none_is_blank() -> None:
    found = [paper for paper in papers() if paper.number]
    assert [p.number for p in sorted(found, key=lambda p: p.number)] == ["000", "001", "002", "003", "004"]
    for paper in found:
        rows = paper.verdicts({study: nothing(study) for study in paper.studies})
        assert sum(tally(rows).values()) > 10
        for row in (row for some in rows.values() for row in some):
            assert row.verdict in VERDICTS
            assert row.paper
            assert row.verdict not in (NOT_REPRODUCED, UNDECIDED), row  # nothing was measured
            assert row.verdict != NOT_RUN or row.ours == NOT_RUN


def test_pages_are_the_same_when_made_again(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    command = [sys.executable, "-m", "leakline.cli", "papers", "-o", str(tmp_path / "papers"), "--readme", str(readme)]
    subprocess.run(command, check=True, timeout=120)
    written = {p.name: p.read_bytes() for p in (tmp_path / "papers").iterdir()}
    assert written == {name: page.encode() for name, page in pages([]).items()}  # another process, the same bytes
    assert len(written) == 6
    text = readme.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "(papers/002-ldp-audit.md)" in text
    assert str(tmp_path) not in "".join(page.decode() for page in written.values())


def test_stores_that_no_page_is_for() -> None:
    with pytest.raises(LeaklineError, match="no study of a paper"):
        pages([nothing("mine")])
    with pytest.raises(LeaklineError, match="two stores"):
        summary([nothing("fedper"), nothing("fedper")])
    with pytest.raises(LeaklineError, match="no place"):
        put("a README", "")


def test_a_row_says_not_run_unless_told_otherwise() -> None:
    assert (Row("x", "1").ours, Row("x", "1").verdict) == (NOT_RUN, NOT_RUN)


DOCS = Path(__file__).parents[2] / "docs" / "papers"


def test_the_pages_of_the_documentation_are_what_their_archives_make() -> None:
    """Byte for byte, and the summary in the README: no number there was typed by hand."""
    stores = [read_archive(path) for path in sorted((DOCS / "stores").glob("*.zip"))]
    assert stores
    assert not any(results.damaged for results in stores)
    made = pages(stores)
    assert {path.name for path in DOCS.glob("*.md")} == set(made)
    for name, text in made.items():
        assert (DOCS / name).read_text("utf-8") == text, "run: leakline papers docs/papers/stores/*.zip"
    readme = (DOCS.parents[1] / "README.md").read_text("utf-8")
    assert readme == put(readme, summary(stores, "docs/papers/"))

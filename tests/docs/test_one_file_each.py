"""A defence and an attack of one file each, as the documentation has them, on the first screen of a report."""

from __future__ import annotations

import importlib
import re
import sys
from html import unescape
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent.parent / "docs"


def file_on(page: str, name: str) -> str:
    """The file of that name, exactly as a page shows it."""
    blocks = re.findall(r"```(?:python|toml)\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.S)
    (text,) = [block for block in blocks if block.startswith(f"# {name}\n")]
    return text


def test_both_are_seen_on_the_first_screen_without_touching_the_report(tmp_path, monkeypatch):
    from leakline.report.page.build import build_report
    from leakline.results import read
    from leakline.study.run import run_study
    from leakline.study.spec import load

    (tmp_path / "label_skew.py").write_text(file_on("adding-an-attack.md", "label_skew.py"))
    (tmp_path / "sparse_release.py").write_text(file_on("adding-a-defence.md", "sparse_release.py"))
    study = file_on("adding-an-attack.md", "study.toml")
    study += 'sparse = [{ use = "sparse_release:SparseRelease", noise_multiplier = 4.0, clip = 1.0, share = 0.05 }]\n'
    (tmp_path / "study.toml").write_text(study)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    outcomes = list(run_study(load("study.toml", trust=True), Path("run"), workers=1))
    assert [outcome.error for outcome in outcomes] == ["", "", ""]

    page = build_report(read(Path("run"))).read_text(encoding="utf-8")
    screen = unescape(re.sub(r"<[^>]+>", " ", page.split('id="glance"')[1].split('id="cards"')[0]))
    assert "sparse" in screen
    assert "epsilon" in screen  # the promise of a class that nobody else has heard of
    assert re.search(r"named-class 0\.\d\d, by chance 0\.\d", screen)  # a measure that only its own file describes
    assert "label-skew" in screen
    with pytest.raises(ValueError, match="not enough values"):
        file_on("adding-an-attack.md", "nothing.py")


@pytest.mark.slow
def test_the_defence_of_the_page_passes_the_wide_audit_and_half_its_noise_does_not(tmp_path, monkeypatch):
    """The page itself plays canaries alone, which take seconds; this is the look that it tells its reader to take."""
    import leakline

    (tmp_path / "sparse_release.py").write_text(file_on("adding-a-defence.md", "sparse_release.py"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "sparse_release", raising=False)
    sparse = importlib.import_module("sparse_release").SparseRelease

    class HalfTheNoise(sparse):
        def release(self, update, turn):
            return sparse(self.noise_multiplier / 2, self.clip, self.share).release(update, turn)

    assert not leakline.audit(sparse(4.0, 1.0), rounds=5, trials=2000, noise="seeded").broken
    assert leakline.audit(HalfTheNoise(4.0, 1.0), rounds=5, trials=2000, noise="seeded").broken

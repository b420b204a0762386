"""A job of NVFlare's simulator with two lines of leakline's: recorded, attacked, audited and reported."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from leakline.recordings.recording import Recording

JOB = Path(__file__).parents[2] / "examples" / "record_nvflare_job"


def test_the_job_has_two_statements_of_leaklines():
    source = (JOB / "recorded.py").read_text()
    code = [line for line in source.splitlines() if "leakline" in line or "write_round(" in line]
    assert len(code) == 2
    for other in ("job.py", "site.py"):
        assert "leakline" not in (JOB / other).read_text()


def site() -> ModuleType:
    spec = importlib.util.spec_from_file_location("nvflare_site", JOB / "site.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_recorded_attacked_audited_and_reported(tmp_path):
    pytest.importorskip("nvflare", reason="needs nvflare")
    subprocess.run([sys.executable, "job.py", str(tmp_path / "rec")], cwd=JOB, check=True, capture_output=True)
    recording = Recording(tmp_path / "rec")
    assert recording.indices() == [0, 1]
    assert sorted(recording.clients(0)) == ["site-1", "site-2", "site-3"]
    module, first = site(), recording.round(0)
    for update in first.updates:  # what was recorded is what that site trained
        sent = {e.name: v.numpy() for e, v in first.sent.layers()}
        new = module.train(sent, *module.pictures(update.client))
        for entry, values in update.delta.layers():
            np.testing.assert_allclose(values.numpy(), new[entry.name] - sent[entry.name], atol=1e-6)
    truth = {name: module.pictures(name)[0].reshape(1, 1, 8, 8) for name in recording.clients(0)}
    np.savez(tmp_path / "truth.npz", **truth)

    def leakline(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "leakline.cli", *words], cwd=JOB, capture_output=True, text=True, check=True
        )
        return done.stdout

    net = ("--model", "net:build", "--shape", "1,8,8", "--round", "0", "--truth", str(tmp_path / "truth.npz"))
    said = leakline("attack", str(tmp_path / "rec"), *net)
    assert [float(value) for value in re.findall(r"round 0 site-\d: ssim ([0-9.]+)", said)] == pytest.approx([1] * 3)
    assert "no noise at the server" in re.sub(r"\s+", " ", leakline("audit", str(tmp_path / "rec")))
    leakline("report", str(tmp_path / "rec"))
    assert "data:image/png" in (tmp_path / "rec" / "report.html").read_text()

"""An app as one finds them, with two lines added, on Flower's own simulation: recorded, inverted, audited, reported."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="needs leakline[flower]")
pytest.importorskip("ray", reason="needs leakline[flower]")

from leakline.flower.processes import environment, flwr, free_port, healthy, start, stop, tree  # noqa: E402
from leakline.recordings.recording import Recording  # noqa: E402

APP = Path(__file__).parents[2] / "examples" / "wrap_flower_app"


def test_the_app_has_two_lines_of_leaklines():
    source = (APP / "digits_app" / "server_app.py").read_text()
    assert len([line for line in source.splitlines() if "leakline" in line]) == 2
    for other in ("client_app.py", "task.py"):
        assert "leakline" not in (APP / "digits_app" / other).read_text()


def simulated(recording: Path) -> str:
    """Run the app on a SuperLink of our own; gives what Flower says of its end."""
    # Ray's sockets lie in this folder, and a socket's path must be short.
    with tempfile.TemporaryDirectory(prefix="ll-", ignore_cleanup_errors=True) as folder:
        return run_in(Path(folder), recording)


def run_in(home: Path, recording: Path) -> str:
    port, env = free_port(), environment(home)
    command = ["flower-superlink", "--insecure", "--simulation", "--host", "127.0.0.1", "--port", str(port)]
    process = start([*command, "--disable-runtime-dependency-installation"], env, home / "superlink.log")
    try:
        until = time.monotonic() + 240
        while not healthy(f"127.0.0.1:{port}"):
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.3)
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
        )
        size = "num-supernodes=3 client-resources-num-cpus=1 init-args-num-cpus=2"
        words = ["run", str(APP), "here", "--federation-config", size, "-c", f'recording="{recording}"']
        run = str(flwr(words, env)["run-id"])
        status = ""
        while not status.startswith("finished"):
            assert time.monotonic() < until, status
            time.sleep(2)
            status = str(flwr(["list", "here", "--run-id", run], env)["runs"][0]["status"])
        return status
    finally:
        stop(tree(process.pid))
        process.wait(timeout=30)


def truth(recording: Recording) -> dict[str, np.ndarray]:
    """Whose update is whose: nodes have numbers, partitions have data; training them again tells which is which."""
    spec = importlib.util.spec_from_file_location("digits_task", APP / "digits_app" / "task.py")
    assert spec is not None
    assert spec.loader is not None
    task = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(task)
    first, found = recording.round(1), {}
    for partition in range(3):
        torch.manual_seed(partition)
        net = task.Net()
        net.load_state_dict({e.name: v.clone() for e, v in first.sent.layers()})
        data, _ = task.load_data(partition, 3, 4)
        task.train(net, data, 1, 0.1, 4)
        change = torch.cat([v.flatten() for v in net.state_dict().values()]) - first.sent.vector
        apart = [float((change - u.delta.vector).norm()) for u in first.updates]
        assert min(apart) < 1e-5  # what was recorded is what that client trained
        found[first.updates[int(np.argmin(apart))].client] = data.tensors[0].numpy()
    assert len(found) == 3
    return found


@pytest.mark.slow
def test_recorded_inverted_audited_and_reported(tmp_path):
    assert simulated(tmp_path / "rec") == "finished:completed"
    recording = Recording(tmp_path / "rec")
    assert recording.indices() == [1, 2]
    np.savez(tmp_path / "truth.npz", **truth(recording))

    def leakline(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "leakline.cli", *words], cwd=APP, capture_output=True, text=True, check=True
        )
        return done.stdout

    plan = ("--learning-rate", "0.1", "--batch", "4", "--epochs", "1")
    client = recording.clients(1)[0]
    said = leakline(
        "attack", str(tmp_path / "rec"), "--use", "gradient-inversion", "--model", "digits_app.task:Net",
        "--shape", "1,8,8", *plan, "--round", "1", "--client", client, "--truth", str(tmp_path / "truth.npz"),
    )  # fmt: skip
    ssim = re.search(r"ssim ([0-9.]+)", said)
    assert ssim is not None
    assert float(ssim[1]) > 0.9
    assert "no noise at the server" in re.sub(r"\s+", " ", leakline("audit", str(tmp_path / "rec")))
    leakline("report", str(tmp_path / "rec"))
    page = (tmp_path / "rec" / "report.html").read_text()
    assert "gradient-inversion" in page
    assert "data:image/png" in page

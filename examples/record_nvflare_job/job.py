"""The job on NVFlare's simulator, three sites, two rounds: ``python job.py RECORDING``."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from nvflare.client.config import ExchangeFormat
from nvflare.job_config.api import FedJob
from nvflare.job_config.script_runner import FrameworkType, ScriptRunner
from recorded import RecordedFedAvg

SHAPES = {"1.weight": [10, 64], "1.bias": [10]}
SITES = 3


def main(recording: str) -> None:
    """Run it here."""
    job = FedJob(name="recorded", min_clients=SITES)
    job.to_server(
        RecordedFedAvg(recording=str(Path(recording).absolute()), shapes=SHAPES, num_clients=SITES, num_rounds=2)
    )
    runner = ScriptRunner(script="site.py", framework=FrameworkType.NUMPY, server_expected_format=ExchangeFormat.NUMPY)
    job.to_clients(runner)
    with tempfile.TemporaryDirectory() as folder:
        job.simulator_run(folder, n_clients=SITES, threads=SITES)


if __name__ == "__main__":
    main(sys.argv[1])

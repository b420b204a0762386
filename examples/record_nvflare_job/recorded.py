"""NVFlare's FedAvg with what it sends, gets and makes of it written down."""

from __future__ import annotations

import numpy as np
from nvflare.app_common.workflows.base_fedavg import BaseFedAvg

from leakline.recordings.writing import write_round  # leakline's first line


class RecordedFedAvg(BaseFedAvg):
    """As in NVFlare's own examples, but for the call of `write_round`."""

    # NVFlare writes down by their names what a constructor takes, and makes it again at the server.
    def __init__(self, recording: str, shapes: dict[str, list[int]], num_clients: int, num_rounds: int) -> None:
        super().__init__(num_clients=num_clients, num_rounds=num_rounds)
        self.recording, self.shapes = recording, shapes

    def run(self) -> None:
        """The rounds."""
        rng = np.random.default_rng(0)
        model = self.load_model()
        model.params = {name: rng.normal(0, 0.05, shape).astype(np.float32) for name, shape in self.shapes.items()}
        for index in range(self.num_rounds):
            self.current_round = model.current_round = index
            model.total_rounds = self.num_rounds
            results = self.send_model_and_wait(targets=self.sample_clients(self.num_clients), data=model)
            sent = dict(model.params)
            model = self.update_model(model, self.aggregate(results))
            write_round(  # leakline's second
                self.recording, sent,
                {r.meta["client_name"]: {k: r.params[k] - sent[k] for k in sent} for r in results}, dict(model.params),
                examples={r.meta["client_name"]: int(r.meta["NUM_STEPS_CURRENT_ROUND"]) for r in results},
                engine="nvflare", plan={"learning_rate": 0.1, "batch": 0, "epochs": 1},
                claimed={"weighting": "examples"},
            )  # fmt: skip

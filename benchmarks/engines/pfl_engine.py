"""pfl's simulation: ``pfl_engine.py FOLDER JOB OUT``.

It trains clients one after another: with all of torch's threads in job A, with one in job B, where a thread pool
only costs. Evaluation is off, which pfl otherwise insists on in the first round.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from jobs import BATCH, RATE, Record, Shared, arguments, optimiser, vector
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch.nn.functional import cross_entropy


class Silent(FederatedAveraging):
    """FedAvg that trains and never evaluates."""

    def get_next_central_contexts(self, *args: Any, **options: Any) -> Any:
        """What the next iteration is to do."""
        contexts, model, metrics = super().get_next_central_contexts(*args, **options)
        return contexts and tuple(replace(c, do_evaluation=False) for c in contexts), model, metrics


class Laps(TrainingProcessCallback):
    """Which round it is, and when each ended."""

    def __init__(self) -> None:
        """Before the first."""
        self.record = Record()

    def after_central_iteration(self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int) -> Any:
        """A round has ended."""
        self.record.lap()
        return False, Metrics()


class Batches(Dataset):
    """A client's data in the batches that every engine uses."""

    def __init__(self, shared: Shared, client: int, laps: Laps) -> None:
        """All of its examples."""
        super().__init__((shared.x[client], shared.y[client]), user_id=str(client))
        self.shared, self.client, self.laps = shared, client, laps

    def iter(self, batch_size: int | None) -> Any:
        """The batches of this round."""
        index = len(self.laps.record.ends)
        if self.shared.job == "A":
            torch.manual_seed(self.shared.seeds[index][self.client])
        for rows in self.shared.steps(index, self.client):
            yield self.shared.x[self.client, rows], self.shared.y[self.client, rows]


def main() -> None:
    """Run the job and leave its record."""
    shared, out, _ = arguments()
    if shared.job == "B":
        torch.set_num_threads(1)
    net = shared.model().train()
    net.loss = lambda x, y: cross_entropy(net(x), y)
    net.metrics = lambda x, y: {}
    laps = Laps()
    order = iter([client for cohort in shared.cohorts for client in cohort])
    data = FederatedDataset(lambda client: Batches(shared, client, laps), lambda: next(order))
    model = PyTorchModel(
        net, lambda parameters, lr: optimiser(shared.job, list(parameters)), torch.optim.SGD(net.parameters(), 1.0)
    )
    Silent().run(
        algorithm_params=NNAlgorithmParams(shared.rounds, 1, len(shared.cohorts[0]), None),
        backend=SimulatedBackend(training_data=data, val_data=data),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=RATE[shared.job], local_batch_size=BATCH[shared.job]
        ),
        callbacks=[laps],
    )
    laps.record.write(out, vector(net))


if __name__ == "__main__":
    main()

"""The model, the data and the training loop of the app."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    """A small convolutional network for 8 x 8 digits."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 12, 3, padding=1)
        self.relu = nn.ReLU()
        self.fc = nn.Linear(12 * 8 * 8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        return self.fc(torch.flatten(self.relu(self.conv(x)), 1))


def load_data(partition_id: int, num_partitions: int, images: int) -> tuple[TensorDataset, TensorDataset]:
    """A partition's own images, and as many to test on."""
    pixels, labels = load_digits(return_X_y=True)
    x = torch.tensor(pixels / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)
    y = torch.tensor(labels)
    mine = torch.arange(partition_id, len(x), num_partitions)
    train, test = mine[:images], mine[images : 2 * images]
    return TensorDataset(x[train], y[train]), TensorDataset(x[test], y[test])


def train(net: Net, data: TensorDataset, epochs: int, learning_rate: float, batch_size: int) -> float:
    """Train for some epochs; returns the mean loss."""
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=learning_rate)
    net.train()
    total, steps = 0.0, 0
    for _ in range(epochs):
        for images, labels in DataLoader(data, batch_size=batch_size, shuffle=True):
            optimizer.zero_grad()
            loss = criterion(net(images), labels)
            loss.backward()
            optimizer.step()
            total, steps = total + loss.item(), steps + 1
    return total / steps


def test(net: Net, data: TensorDataset) -> tuple[float, float]:
    """Loss and accuracy."""
    net.eval()
    images, labels = data.tensors
    with torch.no_grad():
        logits = net(images)
    return nn.functional.cross_entropy(logits, labels).item(), (logits.argmax(1) == labels).float().mean().item()

"""What paper 002 (auditing LDP-SGD) prints; its figures have no numbers."""

from __future__ import annotations

WHITE = {("benign", 4.0): 0.94, ("gradient flip", 4.0): 3.99, ("collusion", 4.0): 4.07}
"""Measured epsilon in its text, by adversary and epsilon (MNIST, white box)."""
CLIENTS = {1: 0.12, 2: 0.07, 4: 0.06, 10: 0.06}
"""Table 3 (MNIST, benign, epsilon not stated)."""
CRAFTS = {
    "benign": "nothing", "input perturbation": "images", "parameter retrogression": "parameters",
    "gradient flip": "gradients", "collusion": "gradients", "dummy gradient": "gradients",
}  # fmt: skip
"""Table 1: what the crafter of each adversary alters."""
EQUATIONS = {"loss": "(4)", "loss change": "(6)", "sign count": "(7), sign corrected"}
"""Table 1: the black-box rules."""
_POOL = "MaxPool2d(kernel_size=2, stride=2, padding=0, dilation=1, ceil_mode=False)"
NETWORK = (
    ("conv1", "Conv2d(1, 16, kernel_size=(8, 8), stride=(2, 2), padding=(3, 3))", 1040),
    ("relu1", "ReLU()", 0),
    ("pool1", _POOL, 0),
    ("conv2", "Conv2d(16, 32, kernel_size=(4, 4), stride=(2, 2))", 8224),
    ("relu2", "ReLU()", 0),
    ("pool2", _POOL, 0),
    ("flatten", "Flatten(start_dim=1, end_dim=-1)", 0),
    ("dense1", "Linear(in_features=32, out_features=32, bias=True)", 1056),
    ("relu3", "ReLU()", 0),
    ("dense2", "Linear(in_features=32, out_features=10, bias=True)", 330),
)
"""Table 2: layers, and the parameters that they have here; a test holds them against the network that is built."""

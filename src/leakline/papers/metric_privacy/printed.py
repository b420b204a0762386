"""The numbers that paper 000 prints, to stand beside ours; always vanilla, global DP, metric privacy."""

from __future__ import annotations

DEFENCES = ("none", "global-dp", "metric-privacy")
CONTROL = "matched-noise"
"""As much noise as metric privacy added in the same cell, round by round, with nothing measured; not in the paper."""
SHOWN = {"none": "vanilla", "global-dp": "global DP", "metric-privacy": "metric privacy", CONTROL: "matched noise"}
STRATEGIES = {
    "fedavg": "FedAvg", "fedavgm": "FedAvgM", "fedmedian": "FedMedian", "fedprox": "FedProx", "fedopt": "FedOpt",
    "fedyogi": "FedYogi",
}  # fmt: skip


def place_of(strategy: str) -> int:
    """Where the paper has a strategy among its six; behind them what it has not."""
    return list(STRATEGIES).index(strategy) if strategy in STRATEGIES else len(STRATEGIES)


Spread = tuple[tuple[float, float], ...]

# Mean and standard deviation of the accuracy over the last five rounds.
LAST_ROUNDS: dict[str, dict[str, Spread]] = {
    "homogeneous": {  # Table 4
        "fedavg": ((0.929, 0.008), (0.881, 0.013), (0.905, 0.007)),
        "fedavgm": ((0.878, 0.013), (0.759, 0.024), (0.799, 0.022)),
        "fedmedian": ((0.920, 0.005), (0.885, 0.013), (0.905, 0.018)),
        "fedprox": ((0.931, 0.006), (0.879, 0.008), (0.907, 0.022)),
        "fedopt": ((0.956, 0.004), (0.918, 0.014), (0.948, 0.005)),
        "fedyogi": ((0.950, 0.006), (0.906, 0.008), (0.911, 0.012)),
    },
    "non-iid": {  # Table 6
        "fedavg": ((0.933, 0.002), (0.878, 0.012), (0.927, 0.008)),
        "fedavgm": ((0.909, 0.007), (0.790, 0.018), (0.840, 0.016)),
        "fedmedian": ((0.926, 0.009), (0.838, 0.013), (0.905, 0.007)),
        "fedprox": ((0.937, 0.014), (0.878, 0.016), (0.943, 0.003)),
        "fedopt": ((0.964, 0.007), (0.925, 0.009), (0.945, 0.006)),
        "fedyogi": ((0.945, 0.005), (0.912, 0.009), (0.919, 0.010)),
    },
}

# Accuracy, F1 score and precision on the test set after the last round.
TEST: dict[str, dict[str, tuple[tuple[float, float, float], ...]]] = {
    "homogeneous": {  # Table 5
        "fedavg": ((0.909, 0.903, 0.950), (0.884, 0.862, 0.918), (0.894, 0.843, 0.943)),
        "fedavgm": ((0.884, 0.768, 0.932), (0.762, 0.554, 0.607), (0.823, 0.608, 0.631)),
        "fedmedian": ((0.932, 0.899, 0.946), (0.875, 0.827, 0.913), (0.895, 0.843, 0.943)),
        "fedprox": ((0.909, 0.848, 0.873), (0.877, 0.853, 0.914), (0.903, 0.877, 0.944)),
        "fedopt": ((0.950, 0.936, 0.970), (0.918, 0.877, 0.911), (0.930, 0.917, 0.950)),
        "fedyogi": ((0.933, 0.914, 0.957), (0.908, 0.841, 0.884), (0.917, 0.888, 0.941)),
    },
    "non-iid": {  # Table 7
        "fedavg": ((0.919, 0.930, 0.956), (0.867, 0.787, 0.886), (0.925, 0.914, 0.931)),
        "fedavgm": ((0.909, 0.862, 0.944), (0.784, 0.573, 0.594), (0.837, 0.621, 0.640)),
        "fedmedian": ((0.933, 0.917, 0.961), (0.859, 0.626, 0.641), (0.917, 0.926, 0.940)),
        "fedprox": ((0.920, 0.910, 0.950), (0.886, 0.871, 0.904), (0.903, 0.890, 0.909)),
        "fedopt": ((0.936, 0.927, 0.957), (0.922, 0.913, 0.960), (0.916, 0.885, 0.889)),
        "fedyogi": ((0.927, 0.870, 0.950), (0.900, 0.845, 0.836), (0.895, 0.847, 0.865)),
    },
}

# Mean and standard deviation over five runs of the test accuracy, homogeneous clients (Table A.12).
FIVE_RUNS: dict[str, Spread] = {
    "fedavg": ((0.930, 0.011), (0.881, 0.013), (0.913, 0.019)),
    "fedavgm": ((0.880, 0.004), (0.781, 0.021), (0.812, 0.028)),
    "fedmedian": ((0.931, 0.000), (0.867, 0.013), (0.897, 0.004)),
    "fedprox": ((0.923, 0.011), (0.880, 0.014), (0.919, 0.011)),
    "fedopt": ((0.947, 0.005), (0.912, 0.010), (0.924, 0.010)),
    "fedyogi": ((0.939, 0.008), (0.899, 0.007), (0.895, 0.013)),
}

# Client inference: aggregated loss, loss on the target's shadow set, difference in percent. Table 10 is FedOpt's: its
# caption says FedYogi, the text and Table D.16 say otherwise.
CLIENT_INFERENCE: dict[str, tuple[tuple[float, float, float], ...]] = {
    "fedavg": ((1.032, 3.603, 1.135), (1.182, 4.848, 1.506), (12.719, 25.679, 24.631)),
    "fedopt": ((0.595, 0.743, 0.756), (0.599, 0.807, 0.853), (0.598, 7.936, 11.320)),
    "fedavgm": ((0.897, 0.969, 0.945), (1.118, 1.115, 1.211), (19.782, 13.105, 21.965)),
    "fedmedian": ((1.068, 2.079, 1.393), (1.188, 2.911, 1.880), (10.129, 28.587, 25.888)),
    "fedprox": ((1.032, 1.846, 1.163), (1.182, 2.681, 1.548), (12.719, 31.173, 24.820)),
    "fedyogi": ((0.795, 0.949, 0.815), (0.895, 1.170, 0.957), (11.150, 18.861, 14.888)),
}

# Test loss after the first round in the client inference scenario (Table 11).
TEST_LOSS: dict[str, tuple[float, float, float]] = {
    "fedavg": (1.010, 3.514, 1.106), "fedavgm": (0.993, 1.048, 1.041), "fedmedian": (1.046, 2.071, 1.387),
    "fedprox": (1.010, 1.744, 1.149), "fedopt": (0.645, 0.845, 0.823), "fedyogi": (0.870, 1.036, 0.902),
}  # fmt: skip

# Total and classes 0 to 3.
PARTS = {"train": (5120, 724, 49, 2566, 1781), "test": (1280, 172, 15, 634, 459)}  # Table 1
CLIENTS: dict[str, tuple[tuple[int, ...], ...]] = {
    "homogeneous": (  # Table 2
        (1280, 181, 12, 641, 446), (1280, 181, 12, 642, 445), (1280, 181, 12, 642, 445), (1280, 181, 13, 641, 445),
    ),
    "non-iid": (  # Table 3
        (1792, 280, 16, 881, 615), (768, 107, 13, 368, 280), (2048, 257, 17, 1054, 720), (512, 80, 3, 263, 166),
    ),
    "client-inference": (  # Table 8
        (1747, 120, 9, 1122, 496), (1591, 180, 11, 894, 506), (1882, 524, 29, 550, 779),
    ),
}  # fmt: skip

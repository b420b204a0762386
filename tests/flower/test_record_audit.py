"""Flower's own differential privacy, recorded and audited against what its objects say of themselves.

Each check calls what keeps its claim broken with a chance of at most 1e-6; some twenty of them are asked here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

flowerlike = pytest.importorskip("flowerlike", reason="needs leakline[flower]")

from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod  # noqa: E402
from flwr.serverapp.strategy import (  # noqa: E402
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    FedMedian,
)

import leakline.flower as flower  # noqa: E402
from leakline.defences import AdaptiveClip, GaussianRelease, GlobalDP, MetricPrivacy  # noqa: E402
from leakline.recordings.checks import check_recording  # noqa: E402
from leakline.recordings.claims import Claimed  # noqa: E402
from leakline.recordings.findings import Finding  # noqa: E402
from leakline.recordings.recording import Recording  # noqa: E402

EVEN, UNEVEN = [50] * 6, [800, 70, 70, 70, 70, 70]
NAMES = "abcdef"


def trainer(examples: list[int], length: float = 2.0, fault: Any = None) -> Any:
    """Clients whose updates have about this length, longer from client to client."""

    def train(client: str, weights: dict[str, np.ndarray], index: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        place = NAMES.index(client)
        rng = np.random.default_rng([place, index])
        std = length * (0.8 + 0.1 * place) / np.sqrt(sum(v.size for v in weights.values()))
        new = {k: (v + std * rng.normal(size=v.shape)).astype(np.float32) for k, v in weights.items()}
        if fault is not None:
            new = fault(client, index, new)
        return new, {"num-examples": examples[place]}

    return train


def audited(
    path: Path, strategy: Any, examples: list[int] = EVEN, rounds: int = 3, mods: Any = (), train: Any = None,
    fault: Any = None, **claims: Any,
) -> dict[str, Finding]:  # fmt: skip
    rng = np.random.default_rng(0)
    initial = {"w": rng.normal(size=(60, 80)).astype(np.float32), "b": rng.normal(size=80).astype(np.float32)}
    app = flowerlike.client_app(train or trainer(examples), mods)
    np.random.seed(1)  # Flower's noise, for a test that comes out the same
    flower.record(strategy, to=path).start(
        grid=flowerlike.Here(app, NAMES, fault), initial_arrays=flowerlike.record(initial), num_rounds=rounds
    )
    recording = Recording(path)
    said = {k: v for k, v in recording.claimed().as_dict().items() if k not in claims}
    return {f.check: f for f in check_recording(recording, Claimed(**{**said, **claims}))}


def fixed(z: float = 1.0, clip: float = 1.0, n: int = 6, inner: Any = None) -> Any:
    return DifferentialPrivacyServerSideFixedClipping(inner or FedAvg(), z, clip, n)


def test_what_the_strategy_says_of_itself_is_recorded(tmp_path):
    audited(tmp_path / "a", fixed(0.7, 1.5), rounds=1)
    assert Recording(tmp_path / "a").claimed() == Claimed(
        clip=1.5, noise_multiplier=0.7, weighting="examples", clients=6,
        by="DifferentialPrivacyServerSideFixedClipping around FedAvg",
    )  # fmt: skip
    audited(tmp_path / "b", DifferentialPrivacyClientSideFixedClipping(FedMedian(), 1.0, 1.0, 6), rounds=1)
    said = Recording(tmp_path / "b").claimed()
    assert (said.clip_at, said.weighting) == ("client", None)  # a median weighs nobody
    audited(tmp_path / "c", flower.as_strategy([GlobalDP(0.9, clip=0.5)], FedAvg()), rounds=1)
    said = Recording(tmp_path / "c").claimed()
    assert (said.clip, said.noise_multiplier, said.weighting) == (0.5, 0.9, "even")
    audited(tmp_path / "d", flower.as_strategy([MetricPrivacy(0.9, clip=0.5)], FedAvg()), rounds=1)
    assert Recording(tmp_path / "d").claimed().clip is None  # its noise follows the clients' distances
    audited(tmp_path / "e", fixed(inner=fixed()), rounds=1)
    assert Recording(tmp_path / "e").claimed().clip is None  # two that add noise are not added up
    audited(tmp_path / "f", FedAdam(), rounds=1)
    assert Recording(tmp_path / "f").claimed().as_dict() == {"by": "FedAdam"}


def test_fixed_clipping_holds_for_even_weights_and_is_broken_for_others(tmp_path):
    """Noise z C / n, where the largest client counts 0.696: needed 0.696, added 1/6."""
    even = audited(tmp_path / "a", fixed())
    assert even["noise"].verdict == "holds"
    uneven = audited(tmp_path / "b", fixed(), UNEVEN)
    assert uneven["noise"].verdict == "broken"
    assert uneven["noise"].rounds == (1, 2, 3)
    assert uneven["noise"].numbers["needed"] == pytest.approx(800 / 1150)
    assert uneven["noise"].numbers["std"] == pytest.approx(1 / 6, rel=0.1)
    defended = audited(tmp_path / "c", flower.as_strategy([GlobalDP(1.0, clip=1.0)], FedAvg()), UNEVEN)
    assert defended["noise"].verdict == "holds"  # leakline's own lets them count the same


def test_noise_for_more_clients_than_there_are_is_broken(tmp_path):
    assert audited(tmp_path, fixed(n=12))["noise"].verdict == "broken"


def test_clipping_at_the_clients_is_held_against_every_update(tmp_path):
    strategy = DifferentialPrivacyClientSideFixedClipping
    kept = audited(tmp_path / "a", strategy(FedAvg(), 1.0, 1.0, 6), mods=[fixedclipping_mod])
    assert (kept["clip"].verdict, kept["noise"].verdict) == ("holds", "holds")
    forgotten = audited(tmp_path / "b", strategy(FedAvg(), 1.0, 1.0, 6))
    assert forgotten["clip"].verdict == "broken"


@pytest.mark.parametrize("at", ["server", "client"])
def test_flowers_adaptive_clipping_runs_away_from_its_quantile(at, tmp_path):
    make = {
        "server": DifferentialPrivacyServerSideAdaptiveClipping,
        "client": DifferentialPrivacyClientSideAdaptiveClipping,
    }[at]
    strategy = make(FedAvg(), 0.5, 6, initial_clipping_norm=0.5, clipped_count_stddev=0.6)
    looked = audited(tmp_path, strategy, rounds=8, mods=[adaptiveclipping_mod] if at == "client" else ())
    assert looked["clip bound"].verdict == "broken"
    assert "clipped and unclipped updates were swapped" in looked["clip bound"].text
    assert looked["noise"].verdict == "broken"  # the bound shrinks, and the noise with it a round too early


def test_leaklines_adaptive_clipping_follows_its_quantile(tmp_path):
    """Lengths go from 1.6 to 2.6, the bound begins at 1 and grows."""
    strategy = flower.as_strategy([AdaptiveClip(0.5, clip=1.0, bits_noise=0.6)], FedAvg(), noise="seeded")
    looked = audited(tmp_path, strategy, rounds=8)
    assert looked["clip bound"].verdict == "holds"
    assert looked["clip bound"].numbers["last"] > 1.2
    assert looked["noise"].verdict == "holds"


def test_local_noise_is_judged_by_update_within_its_claim(tmp_path):
    """Flower's LocalDpMod: std = S sqrt(2 ln(1.25 / delta)) / epsilon; leakline's gaussian-release: std = z C."""
    mod = LocalDpMod(1.0, 1.0, 5.0, 1e-5)
    z = np.sqrt(2 * np.log(1.25e5)) / 5
    local = {"clip": 1.0, "noise_at": "client"}
    looked = audited(tmp_path / "a", FedAvg(), mods=[mod], **local, noise_multiplier=float(z))
    assert {looked[k].verdict for k in ("clip", "noise at clients")} == {"holds"}
    assert looked["noise"].verdict == "seen"  # none is claimed at the server
    assert "fresh noise" not in looked
    more = audited(tmp_path / "b", FedAvg(), mods=[mod], **local, noise_multiplier=1.1 * float(z))
    assert more["noise at clients"].verdict == "broken"  # a tenth is missing
    unclipped = audited(
        tmp_path / "c", FedAvg(), mods=[LocalDpMod(1e9, 1.0, 5.0, 1e-5)], train=trainer(EVEN, length=40.0),
        **local, noise_multiplier=float(z),
    )  # fmt: skip
    assert unclipped["clip"].verdict == "broken"
    defences = [GaussianRelease(1.0, clip=1.0)]
    strategy = flower.as_strategy(defences, FedAvg())
    own = audited(tmp_path / "d", strategy, mods=[flower.as_mod(defences)])
    assert {own[k].verdict for k in ("clip", "noise at clients")} == {"holds"}
    assert Recording(tmp_path / "d").claimed().local


def test_clients_that_share_their_seed_carry_the_same_noise(tmp_path):
    def seeded(message: Any, context: Any, call_next: Any) -> Any:
        np.random.seed(3)
        return mod(message, context, call_next)

    mod = LocalDpMod(1.0, 1.0, 5.0, 1e-5)
    z = float(np.sqrt(2 * np.log(1.25e5)) / 5)
    looked = audited(tmp_path, FedAvg(), mods=[seeded], clip=1.0, noise_at="client", noise_multiplier=z)
    assert looked["fresh noise"].verdict == "broken"


def test_skipped_rounds_and_rounds_of_nan_are_named_and_the_others_judged(tmp_path):
    def fault(client: str, index: int, new: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        if client == "b" and index == 2:
            raise RuntimeError("no memory")  # Flower's wrapper skips the round
        return {k: v * np.float32("nan") for k, v in new.items()} if client == "c" and index == 6 else new

    for name, examples, verdict in (("a", EVEN, "holds"), ("b", UNEVEN, "broken")):
        looked = audited(tmp_path / name, fixed(), rounds=6, train=trainer(examples, fault=fault))
        assert looked["noise"].verdict == verdict
        assert looked["noise"].numbers["rounds"] == 4
        text = looked["rounds left out"].text
        assert "round 2: skipped: the model that was sent stays" in text
        assert "round 6: 1 replies that the server had could not be recorded" in text

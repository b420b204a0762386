"""What paper 001 (gradient inversion in federated learning) prints and concludes, to stand beside ours."""

from __future__ import annotations

from dataclasses import dataclass

PRIOR_SSIM = 0.37
"""SSIM of the prior and the original image of client 9 (Fig. 7), "a lower bound" to the paper."""
SAFE_SIGMA0 = 25
"""Up to about which sigma0 client 9 leaks (Fig. 8; the text has >= for <=)."""
IDENTIFIED_SIGMA0 = 20
"""Up to about which sigma0 client 9's image is identified (Fig. 11)."""
OTHERS_IIP = 0.1
"""Below which the other clients' IIP is said to lie."""
VALIDATION = 200
POOL = 2960
"""Training and validation images of all clients, among which IIP looks for the nearest."""


@dataclass(frozen=True)
class Client:
    """A row of Table II."""

    name: str
    batch: int
    images: int

    @property
    def steps(self) -> int:
        """Local steps of a round of one epoch; a batch is never larger than the client's images."""
        return -(-self.images // min(self.batch, self.images))


CLIENTS = (
    *(Client(f"client-{i + 1}", 4, n) for i, n in enumerate((8, 32, 128, 512))),
    *(Client(f"client-{i + 5}", 8, n) for i, n in enumerate((8, 32, 128, 512))),
    Client("client-9", 1, 1),
)


@dataclass(frozen=True)
class Method:
    """A column of Table I in our words: what a method takes, what the paper says of it, and our attacks like it."""

    name: str
    takes: str
    says: str
    ours: tuple[str, ...]


METHODS = (
    Method(
        "DeepInversion", "weights", "makes images that look like the data from a trained model", ("deep-inversion",)
    ),
    Method("GradInversion", "weights and one batch's gradient", "recovers images, with fixed BN statistics", ()),
    Method(
        "Geiping", "the change of weights over an epoch", "recovers images only where BN statistics are not updated",
        ("geiping",),
    ),
    Method(
        "the paper's, as written", "the change of weights and of BN statistics over an epoch",
        "recovers images of high-risk clients although BN statistics are updated", ("paper",),
    ),
    Method(
        "the paper's, as released", "the same; its matching term has no gradient to the image", "the same",
        ("bn-only",),
    ),
    Method(
        "ours, after the paper's", "the same, and what an update gives away exactly",
        "nothing: squared relative distances, restored labels, coarse to fine", ("grad+bn",),
    ),
)  # fmt: skip
LACKS = {
    "grad+bn": "nothing",
    "paper": "nothing (equations 1 to 5 as written)",
    "dlg": "BN statistics; matches by squared distance",
    "geiping": "BN statistics; matches by cosine (Fig. 3b)",
    "bn-only": "the update: class loss and BN statistics",
    "deep-inversion": "the update and the client's BN statistics",
    "wrong-checkpoint": "the weights that were sent (Fig. 3c)",
    "no-prior": "a prior image (Fig. 3d)",
    "wrong-prior": "the right prior image (Fig. 3e, f)",
    "no-statistics": "BN statistics",
    "unknown-labels": "labels",
    "unknown-rate": "the learning rate",
}
"""What the attacker of each of the study's attacks does without."""


def chance_of(images: int, pool: int = POOL) -> float:
    """The share of the pool that is a client's: how often a nearest neighbour drawn at random is one of its images."""
    return images / pool

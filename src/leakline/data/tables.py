"""Who holds how many images of which class in paper 000 (metric privacy, Alzheimer MRI; Tables 2, 3 and 8).

Classes in the order mild / moderate / non / very mild demented. The training part has 724 / 49 / 2566 / 1781.
"""

from __future__ import annotations

CountTable = tuple[tuple[int, ...], ...]

TRAIN = (724, 49, 2566, 1781)
TEST = (172, 15, 634, 459)

HOMOGENEOUS: CountTable = ((181, 12, 641, 446), (181, 12, 642, 445), (181, 12, 642, 445), (181, 13, 641, 445))
NON_IID: CountTable = ((280, 16, 881, 615), (107, 13, 368, 280), (257, 17, 1054, 720), (80, 3, 263, 166))

# Attacker, bystander, target. Table 8 prints 524 images of class 0 for the target, which makes 824 where the
# data set has 724: the 100 that do not exist are taken from the target.
CLIENT_INFERENCE: CountTable = ((120, 9, 1122, 496), (180, 11, 894, 506), (424, 29, 550, 779))

COUNT_TABLES: dict[str, CountTable] = {
    "homogeneous": HOMOGENEOUS,
    "non-iid": NON_IID,
    "client-inference": CLIENT_INFERENCE,
}

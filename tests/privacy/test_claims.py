import math

import pytest

from leakline.privacy import Adjacency, Claim, Gaussian, Guarantee, NoClaim, Pure, Seat, Unit


def claim(*events):
    return Claim(Unit.CLIENT, Adjacency.ADD_REMOVE, Seat.CLIENT, events)


def test_names_are_the_words_of_the_card():
    assert [str(unit) for unit in Unit] == ["record", "patient", "report", "sub-client", "client"]
    assert Adjacency("replace-one") is Adjacency.REPLACE_ONE
    assert Seat("public") is Seat.PUBLIC


def test_no_claim_prints_the_literal_string_and_its_reason():
    text = str(NoClaim("the noise scale depends on the data", instead="metric privacy per round"))
    assert text.startswith("none (heuristic): the noise scale")
    assert "metric privacy per round" in text


@pytest.mark.parametrize(
    ("make", "value"),
    [
        (lambda: Gaussian(-1.0), "-1.0"),
        (lambda: Gaussian(math.nan), "nan"),
        (lambda: Gaussian(1.0, times=0), "0"),
        (lambda: Gaussian(1.0, rate=0.0), "0.0"),
        (lambda: Gaussian(1.0, rate=1.5), "1.5"),
        (lambda: Gaussian(1.0, copies=3), "3.0"),
        (lambda: Pure(-0.5), "-0.5"),
        (lambda: Pure(1.0, times=-2), "-2"),
        (lambda: Claim(Unit.CLIENT, Adjacency.ADD_REMOVE, Seat.CLIENT, (Pure(1.0),), replace_factor=3.0), "3.0"),
    ],
)
def test_wrong_values_are_named(make, value):
    with pytest.raises(ValueError, match=value):
        make()


def test_a_claim_needs_an_event():
    with pytest.raises(ValueError, match="NoClaim"):
        claim()


def test_releases_are_counted():
    assert claim(Gaussian(1.0, 20), Pure(0.5, 3)).releases == 23


@pytest.mark.parametrize(("mu", "expected"), [(1.0, 0.38), (2.0, 0.68), (5.0, 0.988), (10.0, 0.9999994)])
def test_advantage_of_the_best_attacker_against_gdp(mu, expected):
    assert Guarantee(1e9, 0.0, mu, "").advantage == pytest.approx(expected, abs=0.005)


def test_advantage_from_epsilon_and_delta():
    e, d = 1.3, 0.01
    expected = (math.exp(e) - 1 + 2 * d) / (math.exp(e) + 1)
    assert Guarantee(e, d, None, "").advantage == pytest.approx(expected, rel=1e-12)
    assert Guarantee(0.0, 0.0, None, "").advantage == 0
    assert Guarantee(math.inf, 0.1, None, "").advantage == 1


@pytest.mark.parametrize(
    ("guarantee", "word"),
    [
        (Guarantee(1.0, 1e-5, None, ""), "strong"),
        (Guarantee(2.0, 1e-5, None, ""), "moderate"),
        (Guarantee(3.0, 1e-5, None, ""), "weak"),  # advantage 0.905
        (Guarantee(8.0, 1e-5, 1.5, ""), "weak"),
        (Guarantee(0.5, 0.01, None, ""), "weak"),
        (Guarantee(10.1, 1e-5, 2.0, ""), "vacuous"),
        (Guarantee(6.0, 1e-5, None, ""), "vacuous"),  # advantage 0.995
        (Guarantee(0.5, 0.1, None, ""), "vacuous"),
        (Guarantee(math.inf, 0.0, math.inf, ""), "vacuous"),
    ],
)
def test_verdict(guarantee, word):
    assert guarantee.verdict == word

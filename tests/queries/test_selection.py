"""Which pair each query strategy asks about."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from drlhp.data.candidate import Candidate
from drlhp.data.segment import Segment
from drlhp.queries.selection import QuerySelection, informativeness, looks
from pref_interface import PrefsConfig
from tests.support.asking import ENV_ID, Ring, segment


def predicted(seed: int, *member_returns: float) -> Candidate:
    returns = np.array(member_returns, np.float32) if member_returns else None
    return Candidate(segment(seed, (float(seed), 0.0, 0.0)), returns)


def test_disagreement_is_the_variance_of_the_predicted_preference() -> None:
    a, b = predicted(1, 1.0, 2.0, -1.0), predicted(2, 0.0, 0.5, 2.0)
    p = [1 / (1 + math.exp(-difference)) for difference in (1.0, 1.5, -3.0)]
    mean = sum(p) / 3
    assert informativeness(a, b, "disagreement") == pytest.approx(sum((x - mean) ** 2 for x in p) / 3, rel=1e-5)
    entropy = -mean * math.log2(mean) - (1 - mean) * math.log2(1 - mean)
    assert informativeness(a, b, "entropy") == pytest.approx(entropy, rel=1e-5)
    unknown = predicted(3)
    assert informativeness(a, unknown, "disagreement") == informativeness(unknown, b, "entropy") == 0
    far = predicted(4, 1e4, 1e4, 1e4)
    assert informativeness(far, a, "entropy") == pytest.approx(0, abs=1e-9)


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[Ring]:
    ring = Ring(tmp_path)
    yield ring
    ring.close()


@pytest.mark.parametrize(
    ("selection", "candidates"),
    [("random", 10), ("disagreement", 10), ("entropy", 10), ("newest", 10), ("disagreement", 1)],
)
def test_the_pairs_that_the_selection_wants_are_asked(ring: Ring, selection: QuerySelection, candidates: int) -> None:
    """Of 100 segments the ensemble disagrees about the first ten, and cannot tell the next thirty apart."""
    config = PrefsConfig(
        n_initial_prefs=0, max_prefs=40, max_segs=100, query_selection=selection, query_candidates=candidates
    )
    interface = ring.interface(config=config, goal=40)
    for seed in range(100):
        returns = (1e4, 1e4, -1e4) if seed < 10 else (0.0,) * 3 if seed < 40 else (20.0 * seed,) * 3
        interface.pool.append(predicted(seed, *returns))
    interface.step()
    asked = [row.comparison for row in interface.db.answers()]
    assert len(asked) == 40
    among = dict.fromkeys(("disagreement", "entropy", "newest"), 0)
    for pair in asked:
        seeds = (pair.a.seed, pair.b.seed)
        among["disagreement"] += min(seeds) < 10
        among["entropy"] += min(seeds) >= 10 and max(seeds) < 40
        among["newest"] += min(seeds) >= 90
    by_chance = {"disagreement": 8, "entropy": 4, "newest": 1}
    for name, count in among.items():
        if name == selection and candidates > 1:
            assert count > 15, among
        elif selection == "random" or candidates == 1:
            assert count < 2 * by_chance[name], among


@pytest.mark.parametrize(("selection", "least", "most"), [("random", 0, 5), ("k_center", 7, 10)])
def test_k_center_asks_about_what_looks_unlike_all_that_was_asked(
    ring: Ring, selection: QuerySelection, least: int, most: int
) -> None:
    """Of 100 segments 90 are dark, with some noise; the others each have a light in another place."""
    config = PrefsConfig(n_initial_prefs=0, max_prefs=12, max_segs=100, query_selection=selection)
    interface = ring.interface(config=config, goal=12)
    for seed in range(100):
        dark = segment(seed)
        frames = dark.observations // 32
        if seed < 10:
            frames[:, 2 * (seed // 4) : 2 * (seed // 4) + 2, 2 * (seed % 4) : 2 * (seed % 4) + 2] = 255
        interface.pool.append(Candidate(dataclasses.replace(dark, observations=frames)))
    interface.step()
    asked = [row.comparison for row in interface.db.answers()]
    lit = {one.seed for pair in asked for one in (pair.a, pair.b) if one.seed < 10}
    assert len(asked) == 12 and least <= len(lit) <= most


def test_looks_are_of_one_size_whatever_the_segments_length() -> None:
    long, short = (looks(segment(0, (0.0,) * steps)) for steps in (9, 2))
    assert long.shape == short.shape == (5 * 7 * 7,)
    frame = np.zeros((84, 84), np.uint8)
    frame[12:24, :12] = 144
    arrays = (np.stack([frame] * 5), np.zeros(2, np.int64), np.zeros(2, np.float32))
    seen = looks(Segment(ENV_ID, *arrays, stack=4, policy_step=0, seed=0, fps=15.0)).reshape(5, 7, 7)
    assert (seen[:, 1, 0] == 144).all() and seen.sum() == 5 * 144
    vectors = np.arange(8, dtype=np.float32).reshape(4, 2)
    rest = (np.zeros(4, np.int64), np.zeros(4, np.float32))
    assert looks(Segment(ENV_ID, vectors, *rest, stack=1, policy_step=0, seed=0, fps=15.0)).tolist()[-2:] == [6, 7]

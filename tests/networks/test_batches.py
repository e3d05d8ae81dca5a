"""Labels laid out for the networks: stacks of frames, bootstraps, crops."""

import math
import sys

import numpy as np
import pytest
import torch

from drlhp.data.comparison import Comparison, Label
from drlhp.data.segment import Segment
from drlhp.networks import batches as pair_batches
from drlhp.networks.batches import PairBatch, TrainingPair, bootstrap_count, random_crop
from reward_predictor import RewardPredictor
from tests.support import ROOT
from tests.support.commands import DEADLINE
from tests.support.preloaded import run_captured
from tests.support.ring import ENV_ID, SMALL, VECTORS, segment


def pixels(frames: np.ndarray) -> Segment:
    """Frames (T + 3, H, W), of which four make an observation."""
    steps = len(frames) - 3
    return Segment(ENV_ID, frames, np.zeros(steps, np.int64), np.zeros(steps, np.float32), 4, 0, seed=0, fps=15.0)


def test_stacks_of_four_frames_are_mixed_as_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    segments = [pixels(rng.integers(256, size=(steps + 3, 6, 5), dtype=np.uint8)) for steps in (4, 1, 7)]
    segments.append(segments[0].crop(1, 2))
    quick = pair_batches.observations_of(segments, None)
    monkeypatch.setattr(sys, "byteorder", "big")  # where the quick way would turn the stacks round
    plain = pair_batches.observations_of(segments, None)
    assert torch.equal(quick, plain) and quick.is_contiguous(memory_format=torch.channels_last)
    assert np.array_equal(quick.numpy(), np.concatenate([segment.stacked() for segment in segments]))


def test_pictures_of_four_planes_of_which_only_some_look_like_stacks_go_together() -> None:
    rng = np.random.default_rng(0)
    planes = rng.integers(256, size=(2, 4, 6, 5), dtype=np.uint8)
    other = Segment(ENV_ID, planes, np.zeros(2, np.int64), np.zeros(2, np.float32), 1, 0, seed=0, fps=15.0)
    segments = [pixels(rng.integers(256, size=(7, 6, 5), dtype=np.uint8)), other]
    for order in (segments, segments[::-1]):
        mixed = pair_batches.observations_of(order, None)
        assert np.array_equal(mixed.numpy(), np.concatenate([segment.stacked() for segment in order]))


def test_bootstrap_counts_are_poisson_and_differ_between_members() -> None:
    counts = np.array([[bootstrap_count(f"id {n}", member) for n in range(4000)] for member in range(2)])
    np.testing.assert_allclose(counts.mean(1), 1, atol=0.06)
    np.testing.assert_allclose(counts.var(1), 1, atol=0.12)
    np.testing.assert_allclose((counts == 0).mean(1), math.exp(-1), atol=0.03)
    assert abs(np.corrcoef(counts)[0, 1]) < 0.06


def test_bootstrap_counts_are_the_same_in_every_process() -> None:
    code = "from drlhp.networks.batches import bootstrap_count as b; print([b(f'id {n}', 1) for n in range(20)])"
    printed = run_captured([sys.executable, "-c", code], DEADLINE, cwd=ROOT).stdout
    assert printed.strip() == str([bootstrap_count(f"id {n}", 1) for n in range(20)])


def test_summed_rewards_of_segments_of_any_length() -> None:
    pairs = []
    segments = [segment(n, steps) for n, steps in enumerate((5, 3, 4, 5, 1, 2))]
    for n in range(0, 6, 2):
        asked = Comparison(segments[n], segments[n + 1], flip=False)
        label = Label(n, asked.id, asked.a.id, asked.b.id, (0.0, 1.0), False)
        pairs.append(TrainingPair(label, Stored(asked.a), Stored(asked.b), (1, 0, n)))  # type: ignore[arg-type]
    batch = PairBatch.decode(pairs, None)
    torch.manual_seed(0)
    predictor = RewardPredictor(VECTORS, SMALL)
    with torch.no_grad():
        sums = batch.returns(predictor(batch.observations, batch.actions))
        for i, member in ((i, member) for i in range(6) for member in range(3)):
            one = predictor(torch.from_numpy(segments[i].observations), torch.from_numpy(segments[i].actions))
            assert sums[i % 2][member, i // 2].item() == pytest.approx(one[member].sum().item(), abs=1e-5)
    assert batch.counts.tolist() == [[1, 1, 1], [0, 0, 0], [0, 2, 4]]
    assert batch.mu.tolist() == [[0, 1]] * 3
    true = [float(made.rewards.sum()) for made in segments]
    np.testing.assert_allclose(batch.true_returns, [true[0::2], true[1::2]], rtol=1e-5)


class Stored:
    """A segment in place of its compressed form."""

    def __init__(self, of: Segment) -> None:
        self.decode = lambda: of


def test_a_random_crop_takes_the_same_number_of_steps_from_both_segments() -> None:
    rng, lost, begins = np.random.default_rng(0), set(), set()
    a, b = segment(0, 9), segment(1, 9)
    for _ in range(300):
        parts = random_crop(a, b, 3, rng)
        starts = []
        for part, whole in zip(parts, (a, b), strict=True):
            start = int(np.flatnonzero(whole.rewards == part.rewards[0])[0])
            assert np.array_equal(part.observations, whole.observations[start : start + len(part)])
            assert np.array_equal(part.actions, whole.actions[start : start + len(part)])
            starts.append(start)
        assert len(parts[0]) == len(parts[1])
        lost.add(9 - len(parts[0]))
        begins.add(tuple(starts))
    assert lost == {0, 1, 2, 3}
    assert begins == {(i, j) for i in range(4) for j in range(4)}  # drawn for each


@pytest.mark.parametrize(("lengths", "most"), [((9, 5), 3), ((9, 3), 2), ((1, 9), 0)])
def test_a_random_crop_leaves_a_short_segment_a_step(lengths: tuple[int, int], most: int) -> None:
    rng, lost = np.random.default_rng(0), set()
    for _ in range(100):
        parts = random_crop(segment(0, lengths[0]), segment(1, lengths[1]), 3, rng)
        both = {length - len(part) for length, part in zip(lengths, parts, strict=True)}
        assert len(both) == 1
        lost |= both
    assert lost == set(range(most + 1))

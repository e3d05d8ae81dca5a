"""Which episodes of bodies are given up in training, and which go on."""

from __future__ import annotations

import numpy as np

from a2c.restarts import Restarts


def judged(restarts: Restarts, of_starts: float, last_values: list[float], starts: int = 8) -> list[bool]:
    """Two environments whose episodes begin on every other of so many steps, and go on for 10 after the last start."""
    valid = np.ones((2 * starts + 9, 2), np.bool_)
    valid[0 : 2 * starts : 2] = False
    values = np.zeros(valid.shape, np.float32)
    values[1 : 2 * starts : 2] = of_starts
    restarts.judge(valid, values, np.array(last_values, np.float32), deviation=1.0)
    return restarts.given_up.tolist()


def test_an_episode_is_given_up_if_much_less_is_expected_of_it_than_of_a_new_one() -> None:
    assert judged(Restarts(2, first=10), 3.0, [2.4, 2.6]) == [True, False]


def test_no_episode_is_shorter_than_the_first_ones() -> None:
    assert judged(Restarts(2, first=11), 3.0, [2.4, 2.6]) == [False, False]


def test_episodes_are_no_longer_than_the_first_ones_until_starts_can_be_averaged() -> None:
    assert judged(Restarts(2, first=10), 3.0, [9.0, 9.0], starts=7) == [True, True]
    assert judged(Restarts(2, first=10), 3.0, [9.0, 9.0], starts=8) == [False, False]


def test_starts_of_long_ago_do_not_count() -> None:
    restarts = Restarts(2, first=10)
    judged(restarts, 9.0, [0.0, 0.0], starts=40)
    assert judged(restarts, 3.0, [4.0, 4.0], starts=16) == [True, True], "half of those that count are of before"
    assert judged(restarts, 3.0, [4.0, 4.0], starts=16) == [False, False]


def test_an_episode_is_as_old_as_all_its_rollouts_while_the_critic_knows_nothing() -> None:
    restarts = Restarts(2, first=10)
    given_up = []
    for rollout in range(3):
        valid = np.ones((6, 2), np.bool_)
        valid[2, 0] = rollout != 1
        restarts.wait(valid)
        given_up.append(restarts.given_up.tolist())
    assert given_up == [[False, False], [False, True], [False, True]]

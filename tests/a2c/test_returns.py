"""Advantages against a slow version that takes each formula literally, episode by episode."""

import numpy as np
import pytest

from a2c.returns import ValueUnits, advantages, continuing_advantages

STEPS, ENVS = 40, 6


def random_rollout(seed: int) -> dict[str, np.ndarray]:
    """A rollout with many episode ends; an environment that is resetting gets reward 0 and cannot end."""
    rng = np.random.default_rng(seed)
    terminated, truncated = rng.random((2, STEPS, ENVS)) < 0.1
    rewards = rng.normal(size=(STEPS, ENVS)).astype(np.float32)
    for t in range(1, STEPS):
        resetting = terminated[t - 1] | truncated[t - 1]
        terminated[t, resetting] = truncated[t, resetting] = False
        rewards[t, resetting] = 0
    assert (terminated & truncated).any() or seed, "the first seed should have an episode that ends in both ways"
    return {
        "rewards": rewards,
        "values": rng.normal(size=(STEPS, ENVS)).astype(np.float32),
        "last_values": rng.normal(size=ENVS).astype(np.float32),
        "terminated": terminated,
        "truncated": truncated,
    }


def episodes(rollout: dict[str, np.ndarray], env: int) -> list[tuple[range, float]]:
    """The steps of each episode of one environment, resets left out, and the value after its last step."""
    found, start = [], 0
    for t in range(STEPS):
        done = rollout["terminated"][t, env] or rollout["truncated"][t, env]
        if not done and t < STEPS - 1:
            continue
        after = rollout["last_values"][env] if t == STEPS - 1 else rollout["values"][t + 1, env]
        found.append((range(start, t + 1), 0.0 if rollout["terminated"][t, env] else float(after)))
        start = t + 2  # step t + 1 resets
    return [episode for episode in found if len(episode[0])]


def n_step_advantage(rewards: list[float], values: list[float], n: int, gamma: float) -> float:
    """r_0 + gamma r_1 + ... + gamma^n V_n - V_0, with one more value than rewards."""
    return sum(gamma**k * rewards[k] for k in range(n)) + gamma**n * values[n] - values[0]


def literal_advantage(rewards: list[float], values: list[float], gamma: float, lambda_: float) -> float:
    """Equation 16: the n-step advantages weighted by lambda^(n - 1); the longest has all the weight that is left."""
    longest = len(rewards)
    terms = [lambda_ ** (n - 1) * n_step_advantage(rewards, values, n, gamma) for n in range(1, longest)]
    last = lambda_ ** (longest - 1) * n_step_advantage(rewards, values, longest, gamma)
    return (1 - lambda_) * sum(terms) + last


@pytest.mark.parametrize("lambda_", [0.0, 0.7, 0.95, 1.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_every_step_of_every_episode_has_its_literal_advantage(seed: int, lambda_: float) -> None:
    rollout = random_rollout(seed)
    rollout["terminated"][7, 0] = rollout["truncated"][7, 0] = True  # both at once: there is nothing to bootstrap
    rollout["terminated"][8, 0] = rollout["truncated"][8, 0] = False
    result = advantages(**rollout, gamma=0.9, gae_lambda=lambda_)
    compared = 0
    for env in range(ENVS):
        for steps, value_after in episodes(rollout, env):
            rewards = [float(rollout["rewards"][t, env]) for t in steps]
            values = [float(rollout["values"][t, env]) for t in steps] + [value_after]
            for k, t in enumerate(steps):
                expected = literal_advantage(rewards[k:], values[k:], 0.9, lambda_)
                assert result[t, env] == pytest.approx(expected, abs=1e-4)
                compared += 1
    assert compared > STEPS * ENVS / 2


def test_lambda_one_gives_n_step_returns_less_values() -> None:
    rollout = random_rollout(2)
    rollout["terminated"][:] = rollout["truncated"][:] = False
    returns = advantages(**rollout, gamma=0.5, gae_lambda=1.0) + rollout["values"]
    expected = rollout["last_values"].astype(np.float64)
    for t in reversed(range(STEPS)):
        expected = rollout["rewards"][t] + 0.5 * expected
        np.testing.assert_allclose(returns[t], expected, atol=1e-5)


def test_a_truncated_episode_is_worth_more_than_a_terminated_one_by_its_last_value() -> None:
    """Two environments see the same; one runs out of time at step 0, one dies."""
    one = np.ones((3, 2), np.float32)
    terminated, truncated = np.zeros((2, 3, 2), np.bool_)
    truncated[0, 0] = terminated[0, 1] = True
    values = np.array([[2, 2], [8, 8], [100, 100]], np.float32)  # step 1 shows the last observation, then resets
    result = advantages(one, values, np.zeros(2, np.float32), terminated, truncated, gamma=0.5, gae_lambda=1.0)
    assert result[0].tolist() == [1 + 0.5 * 8 - 2, 1 - 2]


def test_nothing_of_the_next_episode_reaches_the_one_before() -> None:
    rollout = random_rollout(3)
    rollout["terminated"][:] = rollout["truncated"][:] = False
    rollout["truncated"][10] = True
    before = advantages(**rollout, gamma=0.99, gae_lambda=0.95)[:11]
    rollout["rewards"][12:] += 100
    rollout["values"][12:] -= 50
    rollout["last_values"] += 10
    assert np.array_equal(advantages(**rollout, gamma=0.99, gae_lambda=0.95)[:11], before)


@pytest.mark.parametrize("lambda_", [0.0, 0.95, 1.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_without_a_signal_every_return_goes_on_over_the_ends_of_episodes(seed: int, lambda_: float) -> None:
    """All steps of an environment are one episode, those left out on which it reset."""
    rollout = random_rollout(seed)
    done = rollout["terminated"] | rollout["truncated"]
    valid = np.ones_like(done)
    valid[1:] = ~done[:-1]
    given = {name: rollout[name] for name in ("rewards", "values", "last_values")}
    result = continuing_advantages(**given, valid=valid, gamma=0.9, gae_lambda=lambda_)
    assert not valid.all() and (result[~valid] == 0).all()
    for env in range(ENVS):
        steps = np.flatnonzero(valid[:, env])
        rewards = [float(rollout["rewards"][t, env]) for t in steps]
        values = [*(float(rollout["values"][t, env]) for t in steps), float(rollout["last_values"][env])]
        for k, t in enumerate(steps):
            expected = literal_advantage(rewards[k:], values[k:], 0.9, lambda_)
            assert result[t, env] == pytest.approx(expected, abs=1e-4)


def test_without_ends_both_kinds_of_advantage_are_the_same() -> None:
    rollout = random_rollout(3)
    rollout["terminated"][:] = rollout["truncated"][:] = False
    given = {name: rollout[name] for name in ("rewards", "values", "last_values")}
    endless = continuing_advantages(**given, valid=~rollout["terminated"], gamma=0.9, gae_lambda=0.8)
    assert np.array_equal(endless, advantages(**rollout, gamma=0.9, gae_lambda=0.8))


def test_the_critics_units_are_the_mean_and_deviation_of_the_newest_rollouts() -> None:
    rng = np.random.default_rng(0)
    units, mean, square = ValueUnits(), 0.0, 1.0
    told = rng.normal(size=(40, ENVS)).astype(np.float32)
    assert units.values(told).tobytes() == units.targets(told).tobytes() == told.tobytes(), "those of rewards at first"
    for rollout in range(1, 30):
        returns = rng.normal(rollout, 3, 200).astype(np.float32)
        units.observe(returns)
        share = max(0.1, 1 / rollout)
        mean = (1 - share) * mean + share * float(returns.mean())
        square = (1 - share) * square + share * float((returns**2).mean())
        assert (units.mean, units.deviation) == pytest.approx((mean, (square - mean**2) ** 0.5), rel=1e-4)
    assert 18 < units.mean < 24, "rollouts of long ago no longer count"
    for _ in range(60):
        units.observe(rng.normal(20, 3, 200).astype(np.float32))
    returns = rng.normal(20, 3, (40, ENVS)).astype(np.float32)
    np.testing.assert_allclose(units.values(units.targets(returns)), returns, rtol=1e-5)
    assert abs(units.targets(returns).mean()) < 0.5 < units.targets(returns).std() < 1.5
    resumed = ValueUnits()
    resumed.load(units.state())
    resumed.observe(np.zeros(0, np.float32))  # of a rollout in which environments did nothing but reset
    assert resumed.state() == units.state()
    for _ in range(300):
        units.observe(np.full(200, 7, np.float32))
    assert np.isfinite(units.targets(returns)).all() and units.deviation > 0, "where all is worth the same"

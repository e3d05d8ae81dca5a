"""A task of dm_control, by shimmy's ids: read as one vector, drawn for people, and the same again for a seed."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest

from envs import env_info, make_vec_env

if find_spec("dm_control") is None:  # an import here would choose a renderer that needs a display
    pytest.skip("dm_control has no packages for this Python", allow_module_level=True)
WALKER = "shimmy:dm_control/walker-walk-v0"


def test_a_task_of_dm_control_is_read_as_one_vector_and_can_be_watched() -> None:
    info = env_info(WALKER)
    assert (info.kind, info.observation_shape, info.action_dim) == ("vector", (24,), 6)
    assert info.action_bounds == ((-1.0,) * 6, (1.0,) * 6)
    env = make_vec_env(WALKER, 1, seed=0, n_watched=1)
    observations, _ = env.reset()
    pictures = env.watch()
    assert observations.shape == (1, 24) and np.isfinite(observations).all()
    assert pictures.shape[0] == 1 and pictures.dtype == np.uint8 and pictures.std() > 5, "not one colour"
    env.close()


def test_its_episodes_last_for_a_thousand_steps_and_repeat_themselves() -> None:
    played = []
    for _ in range(2):
        env, rng = make_vec_env(WALKER, 1, seed=3), np.random.default_rng(0)
        env.reset()
        steps = [env.step(rng.uniform(-1, 1, (1, 6)).astype(np.float32)) for _ in range(1001)]
        played.append(np.concatenate([observations[0] for observations, *_ in steps]))
        rewards, ended = (np.concatenate([step[part] for step in steps]) for part in (1, 3))
        assert np.flatnonzero(ended).tolist() == [999] and not any(step[2].any() for step in steps)
        assert (rewards >= 0).all() and (rewards <= 1).all() and rewards.max() > 0.01
        env.close()
    first, second = played
    assert np.array_equal(first, second)

"""What the networks of run.py read: vectors, screens, boards, codes, and the parts of a Dict."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from commands.config import RunConfig
from commands.run_folder import read_config
from envs import EnvError, env_info, make_vec_env
from envs.observations import reading_of
from tests.support.commands import SYNC, answers, here, policy_steps, refused

SMALL = (SYNC, "--n_envs", "1")  # more would have processes
WALL, KEY = (2, 5, 0), (5, 4, 0)  # MiniGrid's codes for a wall and a yellow key, whose gray is the same


class Mission(gymnasium.Space[str]):
    """MiniGrid's space of texts, which nothing lays flat."""

    def __init__(self) -> None:
        super().__init__((), str)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        return "get the key"


class Grid(gymnasium.Env):
    """Observes what MiniGrid does, as it declares it: codes as bytes of any value, beside a direction and a text."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012 (Gymnasium's interface)
    observation_space = spaces.Dict(
        {
            "image": spaces.Box(0, 255, (7, 7, 3), np.uint8),
            "direction": spaces.Discrete(4),
            "mission": Mission(),
        }
    )
    action_space = spaces.Discrete(3)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def _seen(self) -> dict[str, Any]:
        image = np.zeros((7, 7, 3), np.uint8)
        image[0], image[3, self.steps % 7] = WALL, KEY
        return {"image": image, "direction": self.steps % 4, "mission": "get the key"}

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict[str, Any], dict]:
        super().reset(seed=seed)
        self.steps = int(self.np_random.integers(7))
        self.end = self.steps + 40
        return self._seen(), {}

    def step(self, action: int) -> tuple[dict[str, Any], float, bool, bool, dict]:
        self.steps += 1
        return self._seen(), float(action == 0), self.steps == self.end, False, {}

    def render(self) -> np.ndarray:
        return np.full((20, 20, 3), 30 * (self.steps % 7), np.uint8)


class Showing(gymnasium.Env):
    """Shows a picture whose every square has the highest value, or the lowest, of the space that it is made with."""

    action_space = spaces.Discrete(2)

    def __init__(self, space: spaces.Box) -> None:
        self.observation_space, self.highest = space, False

    def _picture(self) -> np.ndarray:
        space = self.observation_space
        assert isinstance(space, spaces.Box)
        return (space.high if self.highest else space.low).copy()

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        self.highest = False
        return self._picture(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.highest = action == 1
        return self._picture(), 0.0, False, False, {}


@pytest.fixture
def registered() -> Iterator[None]:
    before = set(gymnasium.registry)
    gymnasium.register("Grid-v0", entry_point="tests.envs.test_observations:Grid", max_episode_steps=100)
    env_info.cache_clear()
    yield
    for env_id in set(gymnasium.registry) - before:
        del gymnasium.registry[env_id]
    env_info.cache_clear()


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(0, 1, (100, 100, 1), np.uint8),
        spaces.Box(0, 1, (100, 100), np.int64),
        spaces.Box(0, 255, (1, 60, 40), np.uint8),
        spaces.Box(0, 255, (60, 40, 3), np.uint8),
        spaces.Box(-1.0, 1.0, (60, 40, 3), np.float32),
        spaces.Box(0, 1000, (60, 40), np.int32),
    ],
)
def test_pictures_are_scaled_by_their_bounds(space: spaces.Box, registered: None) -> None:
    gymnasium.register("Showing-v0", entry_point="tests.envs.test_observations:Showing", kwargs={"space": space})
    assert env_info("Showing-v0").kind == "pixels"
    with closing(make_vec_env("Showing-v0", 2, seed=0, in_process=True)) as env:
        first, _ = env.reset()
        assert first.shape == (2, 4, 84, 84) and first.dtype == np.uint8 and not first.any()
        observations = env.step(np.array([0, 1]))[0]
        assert not observations[0].any() and (observations[1, -1] == 255).all()


@pytest.mark.parametrize(
    ("space", "size"),
    [
        (spaces.Box(0, 255, (7, 7, 3), np.uint8), 147),
        (spaces.Box(-8, 8, (3, 3), np.float32), 9),
        (spaces.Box(-np.inf, np.inf, (4, 11), np.float64), 44),
        (spaces.Box(0, 1, (8, 8, 12), np.uint8), 768),
        (spaces.Box(0, 1, (20, 20, 3), np.uint8), 1200),  # three things, of which two could have one gray
        (spaces.Box(0, 4, (40, 40), np.uint8), 5 * 1600),  # codes: a number for each code of each square
        (spaces.Box(0, 1, ()), 1),
        (spaces.Discrete(5), 5),
        (spaces.Discrete(5, start=-2), 5),
        (spaces.MultiDiscrete([3, 2]), 5),
        (spaces.MultiBinary((2, 2)), 4),
        (spaces.Tuple((spaces.Discrete(3), spaces.Box(-1, 1, (2, 2)))), 7),
        (spaces.Dict({name: spaces.Box(-np.inf, np.inf, (3,), np.float64) for name in ("observation", "goal")}), 6),
    ],
)
def test_what_is_no_screen_becomes_a_vector_that_loses_nothing(space: gymnasium.Space[Any], size: int) -> None:
    space.seed(0)
    reading = reading_of("Any-v0", space, None)
    assert (reading.kind, reading.size) == ("vector", size)
    samples = [space.sample() for _ in range(20)]
    vectors = [reading.vector(sample) for sample in samples]
    assert {(vector.shape, vector.dtype.name) for vector in vectors} == {((size,), "float32")}
    assert len({vector.tobytes() for vector in vectors}) == len({str(sample) for sample in samples})
    if isinstance(space, spaces.Box) and space.shape == (40, 40):
        assert vectors[0].reshape(5, 40, 40).argmax(0).tolist() == samples[0].tolist()


@pytest.mark.parametrize(
    ("space", "key", "words"),
    [
        (spaces.Box(0, 255, (4, 84, 84), np.uint8), None, "TransformObservation"),
        (spaces.Box(0, 9, (60, 60), np.uint8), None, "up to 8192 numbers"),
        (spaces.Box(0, 1, (0,)), None, "are empty"),
        (spaces.Sequence(spaces.Discrete(2)), None, "no fixed number of values"),
        (spaces.Discrete(10_000), None, "10000 numbers"),
        (Grid.observation_space, None, r"\(mission\): .*--observation_key \(direction, image\)"),
        (Grid.observation_space, "picture", "--observation_key one of direction, image, mission"),
        (Grid.observation_space, "mission", "no fixed number of values"),
        (spaces.Discrete(3), "image", "leave out --observation_key"),
        (
            spaces.Dict({"speed": spaces.Discrete(2), "camera": spaces.Box(0, 255, (60, 60, 3), np.uint8)}),
            None,
            "for example --observation_key camera",
        ),
    ],
)
def test_what_cannot_be_read_is_told_in_one_sentence(space: gymnasium.Space[Any], key: str | None, words: str) -> None:
    with pytest.raises(EnvError, match=words) as error:
        reading_of("Any-v0", space, key)
    assert "Any-v0" in str(error.value) and str(error.value).endswith(".")


def test_different_squares_stay_different(registered: None) -> None:
    """As a gray picture the key was a wall."""
    with closing(make_vec_env("Grid-v0[image]", 1, seed=0, n_watched=1)) as env:
        image = env.reset()[0].reshape(7, 7, 3)
        assert tuple(image[0, 0]) == WALL and KEY in [tuple(square) for square in image[3]]
        assert env.watch().shape == (1, 20, 20, 3)


def test_a_part_of_the_observations_is_chosen_by_name(registered: None, tmp_path: Path) -> None:
    """The part belongs to the environment's name, so labels and checkpoints of another part are not mixed in."""
    words = ("gather_initial_prefs", "Grid-v0", "--synthetic_prefs", "--max_prefs", "4", "--max_segs", "8", *SMALL)
    assert "--observation_key" in refused(tmp_path, *words)
    assert not list(tmp_path.iterdir())
    here(tmp_path, *words, "--observation_key", "image")
    (folder,) = tmp_path.iterdir()
    assert folder.name.startswith("Grid-v0-image-2")
    config = RunConfig.from_dict(read_config(folder))
    assert (config.env_id, config.observation_key) == ("Grid-v0[image]", "image")
    here(None, "--resume", str(folder), "--max_prefs", "6", "--n_initial_prefs", "6")
    assert len(answers(folder)) == 6
    other = ("--observation_key", "direction")
    assert "a run of gather_initial_prefs Grid-v0[image]" in refused(tmp_path, *words, "--resume", str(folder), *other)
    message = refused(tmp_path, *words, "--load_prefs_dir", str(folder), *other)
    assert "holds labels of Grid-v0[image], not of Grid-v0[direction]" in message


def test_an_agent_learns_from_discrete_observations(tmp_path: Path) -> None:
    words = ("train_policy_with_original_rewards", "FrozenLake-v1", "--million_timesteps", "0.0005", *SMALL)
    here(tmp_path, *words, "--eval_episodes", "2")
    (folder,) = tmp_path.iterdir()
    assert policy_steps(folder) >= 500

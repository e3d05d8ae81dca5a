"""The environments: preprocessing, moving dot, real Atari ROMs, and Gymnasium's own environments."""

import json
import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import closing
from fractions import Fraction
from math import ceil, floor
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from ale_py.vector_env import AtariVectorEnv
from gymnasium.spaces import Box, Discrete

from benchmarks.learning.flicker import chosen
from envs import EnvError, MovingDotVectorEnv, env_info, make_env, make_vec_env, task_of
from envs.bodies import TASKS
from envs.moving_dot import CENTRE, MovingDotEnv, greedy_return
from envs.preprocessing import PixelPreprocessing, area_resize
from envs.registry import MOVING_DOT_ID
from envs.table import ALL_FRAMES, MOVING_DOT
from envs.tasks import SENTENCES
from envs.tuned import PIXEL_DEFAULTS
from tests.support import ROOT

PAPER_GAMES = ("BeamRider", "Breakout", "Enduro", "Pong", "Qbert", "Seaquest", "SpaceInvaders")


class PictureEnv(gymnasium.Env):
    """Shows the number of steps as brightness and ends after 3; raises on action 1."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 12}  # noqa: RUF012 (Gymnasium's interface)
    observation_space = Box(0, 255, (84, 84), np.uint8)
    action_space = Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.steps = 0

    def _picture(self) -> np.ndarray:
        return np.full((84, 84), 10 * (self.steps + 1), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.steps = 0
        return self._picture(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        if action == 1:
            raise ZeroDivisionError("a fault inside the environment")
        self.steps += 1
        return self._picture(), 2.5, self.steps == 3, False, {}

    def render(self) -> np.ndarray:
        return np.repeat(self._picture()[:30, :40, None], 3, axis=2)


class DyingEnv(PictureEnv):
    """Kills the process that makes it, unless that is the first one."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        if multiprocessing.parent_process() is not None:
            os.kill(os.getpid(), signal.SIGKILL)


class ShrinkingEnv(PictureEnv):
    """Draws a row less with every step."""

    def render(self) -> np.ndarray:
        return super().render()[self.steps :]


class BadSpacesEnv(gymnasium.Env):
    """Acceptable observations and MultiBinary actions."""

    observation_space = Box(-1, 1, (3,), np.float32)
    action_space = gymnasium.spaces.MultiBinary(4)


class BareEnv(gymnasium.Env):
    """Is made without any arguments."""

    observation_space, action_space = Box(-1, 1, (3,), np.float32), Discrete(2)

    def __init__(self) -> None:
        pass

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        return np.ones(3, np.float32), {}


@pytest.fixture
def picture_id() -> Iterator[str]:
    gymnasium.register("Picture-v0", entry_point="tests.envs.test_envs:PictureEnv", max_episode_steps=50)
    env_info.cache_clear()
    yield "Picture-v0"
    del gymnasium.registry["Picture-v0"]


def literal_area_resize(picture: np.ndarray, height: int, width: int) -> np.ndarray:
    """The definition, one pixel at a time, in exact fractions; halves round up."""

    def overlaps(size: int, cells: int, cell: int) -> list[tuple[int, Fraction]]:
        low, high = Fraction(cell * size, cells), Fraction((cell + 1) * size, cells)
        return [(i, min(high, Fraction(i + 1)) - max(low, Fraction(i))) for i in range(floor(low), ceil(high))]

    area = Fraction(picture.shape[0], height) * Fraction(picture.shape[1], width)
    result = np.zeros((height, width), np.uint8)
    rows = [overlaps(picture.shape[0], height, y) for y in range(height)]
    columns = [overlaps(picture.shape[1], width, x) for x in range(width)]
    for y, x in np.ndindex(height, width):
        total = sum(
            weight_y * sum(int(picture[i, j]) * weight_x for j, weight_x in columns[x]) for i, weight_y in rows[y]
        )
        result[y, x] = floor(total / area + Fraction(1, 2))
    return result


@pytest.mark.parametrize("shape", [(210, 160), (84, 84), (97, 50)])
def test_area_resize_equals_its_definition(shape: tuple[int, int]) -> None:
    picture = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    np.testing.assert_array_equal(area_resize(picture, 84, 84), literal_area_resize(picture, 84, 84))


def test_area_resize_keeps_white_white() -> None:
    assert (area_resize(np.full((210, 160), 255, np.uint8), 84, 84) == 255).all()


def test_preprocessing_fills_with_zeros_and_puts_the_newest_frame_last(picture_id: str) -> None:
    env = make_env(picture_id)
    obs, _ = env.reset()
    assert obs.dtype == np.uint8 and obs.shape == (4, 84, 84)
    assert obs[:, 0, 0].tolist() == [0, 0, 0, 10]
    env.step(0)
    obs, reward, *_ = env.step(0)
    assert obs[:, 0, 0].tolist() == [0, 10, 20, 30] and reward == 2.5
    obs, _ = env.reset()
    assert obs[:, 0, 0].tolist() == [0, 0, 0, 10]


def test_preprocessing_takes_the_maximum_of_the_last_two_frames_and_adds_rewards_up() -> None:
    class Blinking(PictureEnv):
        def _picture(self) -> np.ndarray:
            frame = np.zeros((84, 84), np.uint8)
            frame[self.steps] = 100 + self.steps
            return frame

        def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
            obs, reward, _, truncated, info = super().step(action)
            return obs, reward, self.steps == 6, truncated, info

    env = PixelPreprocessing(Blinking(), MOVING_DOT)
    env.reset()
    obs, reward, terminated, *_ = env.step(0)
    assert obs[-1, :6, 0].tolist() == [0, 0, 0, 103, 104, 0] and reward == 10 and not terminated
    obs, reward, terminated, *_ = env.step(0)  # the episode ends two frames into this step
    assert obs[-1, 3:8, 0].tolist() == [0, 0, 105, 106, 0] and reward == 5 and terminated


def test_moving_dot_moves_one_pixel_and_stops_at_the_edge() -> None:
    env = MovingDotEnv()
    frame, _ = env.reset(seed=0)
    assert frame.shape == (210, 160, 3) and frame.sum() == 16 * 3 * 255
    for action, (dx, dy) in enumerate([(0, 0), (0, 1), (1, 0), (0, -1), (-1, 0)]):
        env.position = np.array([50, 60])
        frame, *_ = env.step(action)
        assert env.position.tolist() == [50 + dx, 60 + dy]
        assert frame[58 + dy : 62 + dy, 48 + dx : 52 + dx].all() and frame.sum() == 16 * 3 * 255
    for action, edge in [(1, (50, 207)), (2, (157, 60)), (3, (50, 2)), (4, (2, 60))]:
        env.position = np.array(edge)
        _, reward, *_ = env.step(action)
        assert tuple(env.position) == edge and reward == 0


@pytest.mark.parametrize(
    ("position", "action", "reward"),
    [((60, 105), 2, 1), ((60, 105), 4, -1), ((60, 105), 0, 0), ((80, 105), 1, -1), ((80, 200), 3, 1)],
)
def test_moving_dot_rewards_by_distance_to_the_centre(position: tuple[int, int], action: int, reward: int) -> None:
    env = MovingDotEnv()
    env.reset(seed=0)
    env.position = np.array(position)
    assert env.step(action)[1] == reward


def test_moving_dot_starts_everywhere_and_lasts_1000_frames() -> None:
    env = gymnasium.make(MOVING_DOT_ID)
    env.reset(seed=0)
    starts = dot_centres(np.stack([env.reset()[0] for _ in range(2000)]))
    assert starts.min(0).tolist() == [2, 2] and starts.max(0).tolist() == [157, 207]
    ends = [env.step(0)[2:4] for _ in range(1000)]
    assert ends[-1] == (False, True) and not any(map(any, ends[:-1]))


def test_moving_dot_vector_equals_single_environments() -> None:
    n_envs, seed, steps = 2, 11, 520  # 2 episodes and a bit
    rng = np.random.default_rng(1)
    vector = MovingDotVectorEnv(n_envs, seed, n_watched=1)
    singles = [make_env(MOVING_DOT_ID) for _ in range(n_envs)]
    expected = np.stack([env.reset(seed=seed + i)[0] for i, env in enumerate(singles)])
    obs, _ = vector.reset()
    np.testing.assert_array_equal(obs, expected)
    held = rng.integers(5, size=n_envs)  # kept for long enough to reach every edge
    done = np.zeros(n_envs, bool)
    seen_rewards = set()
    for _ in range(steps):
        held = np.where(rng.random(n_envs) < 0.05, rng.integers(5, size=n_envs), held)
        obs, rewards, terminated, truncated, _ = vector.step(held)
        for i, env in enumerate(singles):
            restarted = (env.reset()[0], 0.0, False, False) if done[i] else None
            expected_step = restarted or env.step(held[i])[:4]
            np.testing.assert_array_equal(obs[i], expected_step[0])
            assert (rewards[i], terminated[i], truncated[i]) == expected_step[1:]
        frames = vector.watch()
        assert frames.shape == (1, 210, 160, 3)
        for frame, env in zip(frames, singles, strict=False):
            assert isinstance(env.unwrapped, MovingDotEnv)
            x, y = env.unwrapped.position
            assert frame[y - 2 : y + 2, x - 2 : x + 2].all() and frame.sum() == 16 * 3 * 255
        done = terminated | truncated
        seen_rewards |= set(rewards.tolist())
    assert seen_rewards == {-1.0, 0.0, 1.0} and rewards.dtype == np.float32


def dot_centres(frames: np.ndarray) -> np.ndarray:
    """Positions (x, y) of the dots in frames, (N, H, W, 3) -> (N, 2)."""
    return np.array([[pixels.min() + 2 for pixels in np.nonzero(frame[..., 0])[::-1]] for frame in frames])


def test_moving_dot_going_to_the_centre_earns_the_distance() -> None:
    env = MovingDotVectorEnv(8, seed=0, n_watched=8)
    env.reset()
    total = np.zeros(8)
    start = dot_centres(env.watch())
    for _ in range(60):
        x, y = (dot_centres(env.watch()) - CENTRE).T
        along_y = np.where(y <= -4, 1, np.where(y >= 4, 3, 0))
        actions = np.where(x <= -4, 2, np.where(x >= 4, 4, along_y))
        total += env.step(actions)[1]
    np.testing.assert_array_equal(total, (np.abs(start - CENTRE) // 4).sum(1))


@pytest.mark.parametrize("game", PAPER_GAMES)
def test_atari_score_is_blank_and_the_rest_is_not(game: str) -> None:
    info = env_info(f"{game}NoFrameskip-v4")
    assert info.blank_areas and info.observation_shape == (4, 84, 84) and info.fps == 15
    rng = np.random.default_rng(0)
    with closing(make_vec_env(info.env_id, 1, seed=3, n_watched=1, n_threads=1)) as env:
        env.reset()
        screens, pictures = [], []
        for _ in range(100):
            obs, rewards, terminated, truncated, _ = env.step(rng.integers(len(info.action_names), size=1))
            screens.append(env.watch()[0])
            pictures.append(obs[0, -1].copy())
        assert obs.shape == (1, 4, 84, 84) and obs.dtype == np.uint8
        assert rewards.dtype == np.float32 and terminated.dtype == truncated.dtype == bool
        assert env.single_action_space == Discrete(len(info.action_names))
        blank = np.zeros((84, 84), bool)
        for top, bottom, left, right in info.blank_areas:
            assert any(len(np.unique(screen[top:bottom, left:right])) > 1 for screen in screens)
            rows = slice(floor(top * 84 / 210), ceil(bottom * 84 / 210))
            blank[rows, floor(left * 84 / 160) : ceil(right * 84 / 160)] = True
        assert (obs[:, :, blank] == 0).all()
        # Elsewhere, the newest gray picture is the colour screen's luminance: same game, moment and place.
        # Approximately: one is a maximum of four frames by colour, which shows more, and the other of two grays.
        for screen, picture in zip(screens[49::50], pictures[49::50], strict=True):
            luminance = (screen @ [0.299, 0.587, 0.114]).round().astype(np.uint8)
            difference = area_resize(luminance, 84, 84).astype(int) - picture
            assert (-difference[~blank]).clip(0).mean() < 1
            assert picture[~blank].max() > 40


@pytest.mark.slow
def test_atari_watched_frames_follow_the_game() -> None:
    rng, over_at = np.random.default_rng(0), 0
    with closing(make_vec_env("PongNoFrameskip-v4", 1, seed=0, n_watched=1, n_threads=1)) as env:
        env.reset()
        for step in range(1500):  # more than one game of 21 points lost
            obs, _, terminated, *_ = env.step(rng.integers(6, size=1))
            over_at = step if terminated[0] else over_at
            if over_at and step > over_at + 100:
                break
            if step % 4:  # watched and observed do not come together again by themselves
                continue
            ours = area_resize((env.watch()[0] @ [0.299, 0.587, 0.114]).round().astype(np.uint8), 84, 84)
            difference = ours[9:].astype(int) - obs[0, -1, 9:]
            assert (difference < -25).sum() < 10 and (difference > 25).sum() < 40  # it shows two frames more
        assert over_at and env.watch().shape == (1, 210, 160, 3)


@pytest.mark.slow
def test_people_see_what_atari_draws_in_any_frame_of_a_step() -> None:
    """Pacman draws each ghost in one frame of four, and two were never seen. The networks may see two frames."""
    options = {"repeat_action_probability": 0.25, "num_threads": 1, "reward_clipping": False}
    raw = {"frameskip": 1, "maxpool": False, "stack_num": 1, "grayscale": False, "img_height": 210, "img_width": 160}
    frames = AtariVectorEnv("pacman", 1, **options, **raw)  # type: ignore[arg-type]
    networks = AtariVectorEnv("pacman", 1, **options)  # type: ignore[arg-type]
    rng, hidden = np.random.default_rng(0), 0
    with closing(make_vec_env("ALE/Pacman-v5", 2, seed=3, n_watched=2, n_threads=1, all_frames=False)) as env:
        seen = env.reset()[0]
        frames.reset(seed=4)
        np.testing.assert_array_equal(networks.reset(seed=4)[0][0], seen[1])
        for _ in range(100):
            actions = rng.integers(5, size=2)
            screens = [frames.step(actions[1:])[0][0, -1] for _ in range(4)]
            seen = env.step(actions)[0]
            np.testing.assert_array_equal(env.watch()[1], np.max(screens, axis=0))
            np.testing.assert_array_equal(networks.step(actions[1:])[0][0], seen[1])
            hidden += (env.watch()[1] != np.max(screens[2:], axis=0)).any(-1).sum() > 20
    assert hidden > 20


@pytest.mark.slow
def test_networks_see_all_ghosts_of_pacman_unless_asked_otherwise() -> None:
    rng, missed = np.random.default_rng(0), np.zeros(2, int)
    with (
        closing(make_vec_env("ALE/Pacman-v5", 1, seed=3, n_watched=1, n_threads=1)) as whole,
        closing(make_vec_env("ALE/Pacman-v5", 1, seed=3, n_watched=1, n_threads=1, all_frames=False)) as two,
    ):
        whole.reset()
        two.reset()
        for _ in range(100):
            actions = rng.integers(5, size=1)
            picture, usual = (env.step(actions)[0][0, -1].astype(int) for env in (whole, two))
            np.testing.assert_array_equal(whole.watch(), two.watch())
            assert (picture >= usual).all()
            shown = area_resize((whole.watch()[0] @ [0.299, 0.587, 0.114]).round().astype(np.uint8), 84, 84)
            # A ghost has more cells than those that differ because people's picture is a maximum by colour.
            missed += [(shown > seen + 40).sum() >= 8 for seen in (picture, usual)]
    assert missed[0] == 0 and missed[1] > 20


def test_games_that_hide_objects_are_those_that_were_measured_except_the_papers() -> None:
    hidden = json.loads((ROOT / "results" / "flicker.json").read_text())["hidden"]
    whole = chosen(hidden)
    assert "pacman" in whole and "seaquest" not in whole
    assert frozenset(whole) == ALL_FRAMES
    for env_id in ("ALE/Pacman-v5", "BerzerkNoFrameskip-v4", "SeaquestNoFrameskip-v4", "ALE/MsPacman-v5"):
        assert env_info(env_id).all_frames is (gymnasium.spec(env_id).kwargs["game"] in whole), env_id
    assert env_info("MovingDotNoFrameskip-v0").all_frames is None


@pytest.fixture
def cut_id() -> Iterator[str]:
    """A game that is soon cut, with a part of a step left over."""
    game = gymnasium.registry["EnduroNoFrameskip-v4"]
    kwargs = {**game.kwargs, "game": "pong", "max_num_frames_per_episode": 203}
    gymnasium.register("Cut-v0", entry_point=game.entry_point, kwargs=kwargs)
    env_info.cache_clear()
    yield "Cut-v0"
    del gymnasium.registry["Cut-v0"]


@pytest.mark.slow
@pytest.mark.parametrize("all_frames", [False, True])
@pytest.mark.parametrize(
    ("env_id", "n_envs", "n_ends"), [("BreakoutNoFrameskip-v4", 1, 3), ("ALE/Breakout-v5", 1, 3), ("Cut-v0", 2, 6)]
)
def test_watched_games_end_with_those_that_they_show(
    env_id: str, n_envs: int, n_ends: int, all_frames: bool, cut_id: str
) -> None:
    """Else an error is raised: at lost games and at cut ones, whatever number of frames they had."""
    rng, ends, last = np.random.default_rng(0), 0, 0
    with closing(make_vec_env(env_id, n_envs, seed=1, n_watched=n_envs, n_threads=1, all_frames=all_frames)) as env:
        env.reset()
        for step in range(1000):
            _, _, terminated, truncated, _ = env.step(rng.integers(env.info.n_actions or 0, size=n_envs))
            if (ended := int((terminated | truncated).sum())) > 0:
                ends, last = ends + ended, step
            if step == 50:
                env.reset()
            if ends >= n_ends and step == last + 10:  # the next ones have begun alike
                break
    assert ends >= n_ends


@pytest.mark.slow
@pytest.mark.parametrize(("env_id", "all_frames"), [("BreakoutNoFrameskip-v4", False), ("ALE/Breakout-v5", True)])
def test_atari_episode_end_is_followed_by_a_reset_without_reward(env_id: str, all_frames: bool) -> None:
    rng = np.random.default_rng(0)
    ends = 0
    with closing(make_vec_env(env_id, 2, seed=0, n_threads=1, all_frames=all_frames)) as env:
        env.reset()
        done = np.zeros(2, bool)
        for _ in range(1200):
            obs, rewards, terminated, truncated, _ = env.step(rng.integers(env.info.n_actions or 0, size=2))
            assert (rewards[done] == 0).all() and not (terminated | truncated)[done].any()
            assert (obs[done, :-1] == 0).all()
            done = terminated | truncated
            ends += done.sum()
            if ends >= 2 and not done.any():
                break
    assert ends >= 2


def test_atari_takes_seeds_beyond_32_bits() -> None:
    """A run that is resumed after some thousand updates seeds its environments with such numbers."""
    shown = []
    for seed in (3_000_000_000, 3_000_000_000, 3_000_000_001):
        first, last = run_episode("BreakoutNoFrameskip-v4", seed, n_envs=1, steps=20)
        shown.append(np.stack([first, last]))
    assert np.array_equal(shown[0], shown[1])
    assert not np.array_equal(shown[0], shown[2])


def test_enduro_is_cut_at_3000_frames() -> None:
    info = env_info("EnduroNoFrameskip-v4")
    assert info.max_episode_frames == 3000
    rows = slice(64, 84)  # from screen row 160: speedometer and score
    with closing(make_vec_env(info.env_id, 1, seed=0, n_threads=1)) as env:
        env.reset()
        for _ in range(750):
            obs, _, terminated, truncated, game = env.step(np.array([1]))
            assert not obs[:, :, rows].any()
            if truncated[0]:
                break
    assert truncated[0] and not terminated[0]
    assert 3000 <= game["episode_frame_number"][0] <= 3000 + 31  # the no-ops and FIRE may come on top


def test_atari_rewards_are_not_clipped() -> None:
    rewards_seen = set()
    rng = np.random.default_rng(0)
    with closing(make_vec_env("SpaceInvadersNoFrameskip-v4", 1, seed=0, n_threads=1)) as env:
        env.reset()
        for _ in range(200):
            rewards_seen |= set(env.step(rng.integers(6, size=1))[1].tolist())
    assert max(rewards_seen) >= 5


@pytest.mark.parametrize("env_id", ["PongNoFrameskip-v0", "Pong-v4", "ALE/Pong-v5", "ALE/Tetris-v5"])
def test_every_atari_spelling_gets_the_same_preprocessing(env_id: str, capfd: pytest.CaptureFixture[str]) -> None:
    with closing(make_vec_env(env_id, 1, seed=0, n_threads=1)) as env:
        obs, _ = env.reset()
        assert obs.shape == (1, 4, 84, 84)
        assert (obs[:, :, :9].max() == 0) == ("Pong" in env_id)
        frame = env.step(np.array([0]))[4]["frame_number"][0]
        assert env.step(np.array([0]))[4]["frame_number"][0] - frame == 4
        env.close()  # twice with the one of closing()
    assert capfd.readouterr() == ("", "")


def run_episode(env_id: str, seed: int, n_envs: int, steps: int = 60) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    with closing(make_vec_env(env_id, n_envs, seed, n_threads=1)) as env:
        first = env.reset()[0].copy()
        for _ in range(steps):
            last = env.step(rng.integers(len(env_info(env_id).action_names), size=n_envs))[0]
        return first, last.copy()


@pytest.mark.parametrize("env_id", ["BreakoutNoFrameskip-v4", MOVING_DOT_ID])
def test_seeds_reproduce_and_differ(env_id: str) -> None:
    first, last = run_episode(env_id, 5, n_envs=2)
    again_first, again_last = run_episode(env_id, 5, n_envs=2)
    np.testing.assert_array_equal(first, again_first)
    np.testing.assert_array_equal(last, again_last)
    other_first, other_last = run_episode(env_id, 6, n_envs=2)
    np.testing.assert_array_equal(first[1:], other_first[:-1])  # environment i has seed + i
    assert (last != other_last).any()


@pytest.mark.parametrize("in_process", [False, True])
def test_cartpole_in_workers_or_here_matches_a_plain_cartpole(in_process: bool) -> None:
    info = env_info("CartPole-v1")
    assert (info.kind, info.observation_shape, info.n_actions, info.fps) == ("vector", (4,), 2, 50)
    hopper = env_info("Hopper-v5")  # moves at 125 steps a second: nobody could judge clips of half a second
    assert (hopper.fps, hopper.segment_length, env_info("HalfCheetah-v5").fps) == (40, 60, 20)
    assert info.segment_length == 25
    with closing(make_vec_env("CartPole-v1", 2, seed=7, in_process=in_process)) as env:
        assert len(multiprocessing.active_children()) == (0 if in_process else 2)
        plain = [gymnasium.make("CartPole-v1") for _ in range(2)]
        obs, _ = env.reset()
        assert obs.dtype == np.float32
        np.testing.assert_array_equal(obs, [e.reset(seed=7 + i)[0] for i, e in enumerate(plain)])
        done = np.zeros(2, bool)
        ends = 0
        for _ in range(40):
            obs, rewards, terminated, truncated, _ = env.step(np.ones(2, np.int64))
            assert rewards.dtype == np.float32
            for i, e in enumerate(plain):
                expected = (e.reset()[0], 0.0, False) if done[i] else e.step(1)[:3]
                np.testing.assert_array_equal(obs[i], expected[0])
                assert (rewards[i], terminated[i]) == expected[1:]
            done = terminated | truncated
            ends += done.sum()
        assert ends >= 4
        env.close()


def test_a_worker_that_is_killed_is_told_of_and_nobody_waits_for_it() -> None:
    env = make_vec_env("CartPole-v1", 3, seed=0)
    env.reset()
    workers = multiprocessing.active_children()
    os.kill(workers[1].pid or 0, signal.SIGKILL)
    with pytest.raises(EnvError, match="CartPole-v1 was killed by SIGKILL"):
        while True:
            env.step(np.zeros(3, np.int64))
    env.close()
    for worker in workers:
        worker.join()
    assert len(workers) == 3


def test_a_worker_that_is_killed_while_it_starts_is_told_of_with_the_fix() -> None:
    gymnasium.register("Dying-v0", entry_point="tests.envs.test_envs:DyingEnv", max_episode_steps=50)
    with pytest.raises(EnvError, match=r"Dying-v0 ended while it was started; .* with fewer --n_envs\.$"):
        make_vec_env("Dying-v0", 2, seed=0)


def test_an_atari_game_that_was_registered_by_its_name_alone_has_the_defaults_of_ale_py() -> None:
    gymnasium.register("Named-v0", entry_point="ale_py.env:AtariEnv", kwargs={"game": "pong"})
    played = []
    for env_id in ("Named-v0", "ALE/Pong-v5"):
        with closing(make_vec_env(env_id, 1, seed=0, whole_games=True)) as env:
            env.reset()
            played.append([env.step(np.array([2]))[0] for _ in range(40)])
            assert env.info.max_episode_frames == 108_000
    np.testing.assert_array_equal(played[0], played[1])
    gymnasium.register("Nameless-v0", entry_point="ale_py.env:AtariEnv")
    with pytest.raises(EnvError, match=r"Nameless-v0 could not be created: .*'game'"):
        env_info("Nameless-v0")


def test_continuous_actions_are_clipped_to_their_bounds() -> None:
    info = env_info("Pendulum-v1")
    assert (info.n_actions, info.action_dim, info.action_names) == (None, 1, ())
    with closing(make_vec_env("Pendulum-v1", 1, seed=0)) as env:
        env.reset()
        plain = gymnasium.make("Pendulum-v1")
        plain.reset(seed=0)
        for step in range(1, 201):
            obs, rewards, _, truncated, _ = env.step(np.full((1, 1), 50, np.float32))
            expected, reward, *_ = plain.step(np.full(1, 2, np.float32))
            np.testing.assert_allclose(obs[0], expected)
            assert rewards[0] == pytest.approx(reward) and truncated[0] == (step == 200)
        assert env.step(np.zeros((1, 1), np.float32))[1][0] == 0


def test_nobody_wins_more_of_the_moving_dot_than_the_best_player() -> None:
    n, seed = 20, 77
    best, rng = greedy_return(n, seed), np.random.default_rng(0)
    for share_of_good_moves in (0.0, 0.5, 0.9, 1.0):
        env = MovingDotVectorEnv(n, seed)
        env.reset(seed=seed)
        total = np.zeros(n)
        for _ in range(250):
            x, y = (CENTRE - env._position).T
            good = np.where(abs(x) > abs(y), np.where(x > 0, 2, 4), np.where(y > 0, 1, 3))
            good[(x == 0) & (y == 0)] = 0
            total += env.step(np.where(rng.random(n) < share_of_good_moves, good, rng.integers(0, 5, n)))[1]
        assert total.mean() <= best
    assert total.mean() > best - 2  # who always goes along the longer way gets nearly as much


@pytest.mark.filterwarnings("ignore:.*(Received the following|Traceback|Raising the last):UserWarning")
def test_other_pixel_environments_are_watched_and_their_faults_surface(picture_id: str) -> None:
    info = env_info(picture_id)
    assert (info.kind, info.frame_skip, info.fps, info.max_episode_frames) == ("pixels", 1, 12, 50)
    assert info.segment_length == 18 and info.tuned == PIXEL_DEFAULTS  # 1.5 s; the settings are those of Atari
    with closing(make_vec_env(picture_id, 3, seed=0, n_watched=2)) as env:
        obs, _ = env.reset()
        assert obs.shape == (3, 4, 84, 84)
        for brightness in (20, 30, 40, 10):  # the fourth step is the reset
            obs, _, _, _, info_dict = env.step(np.zeros(3, np.int64))
            assert obs[:, -1, 0, 0].tolist() == [brightness] * 3
            assert env.watch().shape == (2, 30, 40, 3) and (env.watch() == brightness).all()
            assert not info_dict
        with pytest.raises(ZeroDivisionError, match="a fault inside the environment"):
            env.step(np.array([0, 1, 0]))


def test_an_environment_that_cannot_be_drawn_is_used_where_nobody_watches() -> None:
    gymnasium.register("Bare-v0", entry_point="tests.envs.test_envs:BareEnv")
    with closing(make_vec_env("Bare-v0", 2, seed=0)) as env:
        np.testing.assert_array_equal(env.reset()[0], np.ones((2, 3)))
    with pytest.raises(EnvError, match="Bare-v0 cannot draw frames for people to watch"):
        make_vec_env("Bare-v0", 2, seed=0, n_watched=1)


def test_frames_that_change_their_size_are_told_in_one_sentence() -> None:
    gymnasium.register("Shrinking-v0", entry_point="tests.envs.test_envs:ShrinkingEnv")
    sentence = r"^Shrinking-v0 cannot be watched: its frames change their size .+ \(29, 40\) and \(30, 40\)\); .+\.$"
    for n_envs in (1, 2):  # here, and in processes
        with closing(make_vec_env("Shrinking-v0", n_envs, seed=0, n_watched=1)) as env:
            env.reset()
            with pytest.raises(EnvError, match=sentence):
                env.step(np.zeros(n_envs, np.int64))


def test_an_atari_game_in_wrappers_or_another_mode_is_played_as_it_was_registered() -> None:
    game = gymnasium.registry["PongNoFrameskip-v4"]
    kept_short = (gymnasium.wrappers.TimeLimit.wrapper_spec(max_episode_steps=5),)
    gymnasium.register("Short-v0", entry_point=game.entry_point, kwargs=game.kwargs, additional_wrappers=kept_short)
    screens = {}
    for difficulty in (0, 1):  # the second halves the paddle
        kwargs = {**game.kwargs, "difficulty": difficulty}
        gymnasium.register(f"Pong{difficulty}-v0", entry_point=game.entry_point, kwargs=kwargs)
        with closing(make_vec_env(f"Pong{difficulty}-v0", 1, seed=0, n_watched=1)) as env:
            env.reset()
            for _ in range(60):
                env.step(np.zeros(1, np.int64))
            screens[difficulty] = env.watch()[0]
    assert (screens[0] != screens[1]).any()
    with closing(make_vec_env("Short-v0", 1, seed=0)) as env:
        env.reset()
        assert [env.step(np.zeros(1, np.int64))[3][0] for _ in range(5)] == [False] * 4 + [True]


def test_labellers_are_told_in_a_sentence_what_is_good() -> None:
    assert "green paddle" in task_of("PongNoFrameskip-v4") == task_of("ALE/Pong-v5")
    assert "points" in task_of("MsPacmanNoFrameskip-v4")
    assert "dot" in task_of(MOVING_DOT_ID) and "pole" in task_of("CartPole-v1")
    assert all(task_of(env_id) for env_id in TASKS) and task_of("Walker") == task_of("Walker2d-v5")
    assert task_of("MountainCar-v0") == task_of("NoSuchThing-v0") == ""
    names = {spec.kwargs.get("game", spec.name) for spec in gymnasium.registry.values()} | {"MovingDot"}
    names |= {env_id.removesuffix("-v1") for env_id in TASKS}
    assert set(SENTENCES) <= names, "of environments that there are"


def test_unusable_environments_are_refused_in_one_sentence() -> None:
    gymnasium.register("BadSpaces-v0", entry_point="tests.envs.test_envs:BadSpacesEnv")
    for env_id, helpful in [
        ("PongNoFrameskip-v5", "PongNoFrameskip-v4"),
        ("breakout", "Breakout"),
        ("MovingDt", "try MovingDotNoFrameskip-v0, any other Atari game, or"),  # which is not offered twice
        ("xyzzy", "PongNoFrameskip-v4, any other Atari game, MovingDotNoFrameskip-v0"),
        ("Pong-ramNoFrameskip-v4", "use PongNoFrameskip-v4"),
        ("ALE/Pong-ram-v5", "use ALE/Pong-v5"),
        ("BadSpaces-v0", "MultiBinary"),
        ("no_such_package:Foo-v0", "no_such_package"),
    ]:
        with pytest.raises(EnvError, match=helpful) as caught:
            env_info(env_id)
        message = str(caught.value)
        assert env_id in message and message.endswith(".") and "\n" not in message


@pytest.mark.parametrize(
    ("text", "reason"), [("def (", "SyntaxError"), ("1 / 0", "ZeroDivisionError"), ("raise SystemExit", "SystemExit")]
)
def test_a_module_that_cannot_be_imported_is_told_in_one_sentence(
    text: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_faulty_envs.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(EnvError, match=rf"^my_faulty_envs:Foo-v0 .* my_faulty_envs .*{reason}.*; fix it\.$"):
        env_info("my_faulty_envs:Foo-v0")


def test_the_package_that_is_really_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_traffic.py").write_text("import my_missing_tables.core\n")
    monkeypatch.syspath_prepend(tmp_path)
    gymnasium.register("Traffic-v0", entry_point="my_traffic:Env")
    for env_id, words in [
        ("my_traffic:Traffic-v0", "'my_missing_tables', which my_traffic imports: install it"),
        ("Traffic-v0", "'my_missing_tables', which it imports: install it"),
        ("my_missing_envs.cars:Traffic-v0", "'my_missing_envs': install it"),
    ]:
        with pytest.raises(EnvError, match=f"{env_id} needs the Python package {words}"):
            env_info(env_id)


def test_missing_package_is_named() -> None:
    try:
        import mujoco  # noqa: F401
    except ImportError:
        with pytest.raises(EnvError, match=r"(?i)mujoco.*install"):
            env_info("Hopper-v5")
    else:
        assert env_info("Hopper-v5").action_dim == 3


def test_wrong_numbers_of_environments_are_refused() -> None:
    with pytest.raises(EnvError, match="at least 1"):
        make_vec_env(MOVING_DOT_ID, 0, seed=0)
    with pytest.raises(EnvError, match="watched"):
        make_vec_env(MOVING_DOT_ID, 2, seed=0, n_watched=3)
    with pytest.raises(EnvError, match="make_vec_env"):
        make_env("PongNoFrameskip-v4")


@pytest.mark.slow
def test_whole_games_of_enduro_go_on() -> None:
    """A first day that is not passed takes some 13,000 frames."""
    with closing(make_vec_env("EnduroNoFrameskip-v4", 1, seed=0, n_threads=1, whole_games=True)) as env:
        env.reset()
        steps = next(step for step in range(1, 5000) if env.step(np.array([0]))[2][0])
    assert 3000 < steps < 4000

"""Others' results, to compare runs with: each figure with its source."""

from __future__ import annotations

from dataclasses import dataclass, replace

import gymnasium

FIGURE_3 = "Christiano et al. 2017, figure 3, read off (about 1 to 2 % of the axis)"
FIGURE_3_MEAN = f"{FIGURE_3}, mean of 3 runs, at the end (47 to 50 million timesteps)"
FIGURE_3_HUMAN = f"{FIGURE_3}, one run, at the end"
FIGURE_2 = "Christiano et al. 2017, figure 2, read off (about 1 to 2 % of the axis)"
FIGURE_2_MEAN = f"{FIGURE_2}, mean of 5 runs, at the end (20 million timesteps)"
ZOO = "RL Baselines3 Zoo, benchmark.md, one run of 10 million agent steps"
ORIGINAL = "mrahtz/learning-from-human-preferences, README and images"
GLUCARD = "glucard, readme.md and media/benchmark.png: recurrent PPO, one run of 30,208 agent steps"
# Its footnote 6: "the max average return over 10 trails (different seeds)", each averaged over ten test episodes.
TIANSHOU = "Tianshou, examples/mujoco/README.md, mean of 10 runs, of each the best evaluation and not the last"
SUM_OF_A_TRAINING = "it is the sum over the whole training (`true_reward_total` in progress.csv), not an episode's"
LONGER_EPISODES = "its episodes are longer than the 50 steps here"


@dataclass(frozen=True)
class Reference:
    """One published result.

    The paper counts timesteps. We read them as agent steps, because learning Pong in 8 million fits agent steps and not
    frames.
    """

    who: str  # short, for the legend
    reward: float  # true episode reward
    source: str
    steps: float | None = None  # agent steps after which it was reached
    labels: float | None = None  # labels used until then; 0: learned from the true reward
    is_target: bool = False  # whether verdicts compare runs with it; at most one for an environment
    on_the_way: bool = False  # whether training continued after it
    not_comparable: str = ""  # the reason why it is listed and not drawn


def _paper(who: str, reward: float, labels: float, source: str, *, is_target: bool = False) -> Reference:
    return Reference(f"paper, {who}", reward, source, 50e6, labels, is_target)


def _crossing(who: str, reward: float, steps: float, labels: float | None = None) -> Reference:
    source = f"{FIGURE_3}, first crossing of {reward:g}"
    return Reference(f"paper, {who}", reward, source, steps, labels, on_the_way=True)


def _bodies(true: float, labels_700: float, labels_1400: float) -> tuple[Reference, ...]:
    """Returns the paper's results on a MuJoCo task, learned with TRPO."""
    return (
        Reference("paper, TRPO on the true reward", true, FIGURE_2_MEAN, 20e6, 0, is_target=True),
        Reference("paper, 700 synthetic labels", labels_700, FIGURE_2_MEAN, 20e6, 700),
        Reference("paper, 1,400 synthetic labels", labels_1400, FIGURE_2_MEAN, 20e6, 1400),
    )


def _gymnasiums(cleanrl: float | None, tianshou: float) -> tuple[Reference, ...]:
    """Returns others' results of PPO on an older version of Gymnasium's MuJoCo task, after a million agent steps."""
    found = [Reference("Tianshou PPO, best of each run", tianshou, TIANSHOU, 1e6, 0)]
    if cleanrl is not None:
        found.append(Reference("CleanRL PPO", cleanrl, "CleanRL, ppo_continuous_action.md, version 4", 1e6, 0))
    best = max(found, key=lambda reference: reference.reward)
    return tuple(replace(reference, is_target=reference is best) for reference in found)


def _walker_walk(*results: tuple[str, float]) -> tuple[Reference, ...]:
    """Returns others' results on dm_control's walker-walk, with 100 labels in half a million agent steps."""
    best = max(reward for _, reward in results)
    source = "Zhu et al. (Proximal Policy Exploration), their comparison of five seeds each"
    return tuple(Reference(who, reward, source, 5e5, 100, is_target=reward == best) for who, reward in results)


# Christiano et al. 2017, figures 5 (of 700 synthetic labels, mean of 5 runs) and 6 (of 5,500, mean of 3), read off at
# their end. By environment and by what is changed ("": nothing). Pong's target ends at 41 million timesteps.
CHANGED = ("", "random-queries", "no-ensemble", "no-l2", "no-online-queries", "target", "no-segments")
PAPERS_ABLATIONS: dict[str, dict[str, float]] = {
    "Hopper-v1": dict(zip(CHANGED, (4500, 3970, 3870, 3920, 4040, 1810, 2340), strict=True)),
    "Swimmer-v1": dict(zip(CHANGED, (167, 57, 62, 98, 51, 37, 98), strict=True)),
    "HalfCheetah-v1": dict(zip(CHANGED, (4630, 5400, 3330, 5600, 3950, 1150, 1190), strict=True)),
    "PongNoFrameskip-v4": dict(zip(CHANGED[:-1], (20.8, 20.8, 20.8, 20.7, 12.5, -17), strict=True)),
}

REFERENCES: dict[str, tuple[Reference, ...]] = {
    "shimmy:dm_control/walker-walk-v0": _walker_walk(
        *(("PEBBLE", 453), ("SURF", 661), ("RUNE", 415), ("QPA", 796), ("QPA with PPE", 908))
    ),
    "Hopper-v1": _bodies(4190, 4510, 4410),
    "Walker-v1": _bodies(5270, 4850, 5910),
    "HalfCheetah-v1": _bodies(4210, 4640, 5330),
    "Swimmer-v1": _bodies(173, 167, 175),
    "Ant-v1": _bodies(57, -190, 110),
    "Reacher-v1": _bodies(-1.76, -3.11, -2.39),
    "InvertedDoublePendulum-v1": tuple(
        replace(reference, is_target=False, not_comparable=LONGER_EPISODES) for reference in _bodies(7390, 7850, 8490)
    ),
    "Hopper-v5": _gymnasiums(2383, 2609),
    "Walker2d-v5": _gymnasiums(2288, 3589),
    "HalfCheetah-v5": _gymnasiums(1443, 5784),
    "Swimmer-v5": _gymnasiums(None, 67),
    "Reacher-v5": _gymnasiums(None, -4.1),
    "Ant-v5": _gymnasiums(None, 3258),
    "Ant-v4": _gymnasiums(None, 3258),
    "PongNoFrameskip-v4": (
        _paper("A2C on the true reward", 20.8, 0, FIGURE_3_MEAN, is_target=True),
        _paper("3,300 synthetic labels", 20.5, 3300, f"{FIGURE_3_MEAN}; 20.5 or a little more"),
        _paper("5,600 synthetic labels", 21.0, 5600, FIGURE_3_MEAN),
        _paper("10,000 synthetic labels", 20.3, 10000, FIGURE_3_MEAN),
        _paper("5,500 labels of a person", 20.9, 5500, FIGURE_3_HUMAN),
        _crossing("A2C on the true reward", 19.5, 8.3e6, 0),
        _crossing("3,300 synthetic labels", 0.0, 10e6),
        _crossing("3,300 synthetic labels", 19.5, 25.5e6),
        _crossing("5,600 synthetic labels", 0.0, 8.5e6),
        _crossing("5,600 synthetic labels", 19.5, 17.6e6),
        Reference(
            "original implementation", 20.0, f"{ORIGINAL}: 20 after about 10 million timesteps", 10e6, on_the_way=True
        ),
        Reference("original implementation", 20.3, f"{ORIGINAL}: the end of a run of 20 million timesteps", 20e6),
        Reference("Stable-Baselines3 A2C", 17.3, ZOO, 10e6, 0),
        Reference("Stable-Baselines3 PPO", 21.0, ZOO, 10e6, 0),
    ),
    "EnduroNoFrameskip-v4": (
        _paper("A2C on the true reward", 0.0, 0, FIGURE_3_MEAN),
        _paper("10,000 synthetic labels", 0.0, 10000, f"{FIGURE_3_MEAN}; about 0"),
        _paper("5,500 labels of a person", 690.0, 5500, FIGURE_3_HUMAN, is_target=True),
        Reference("Stable-Baselines3 PPO", 996.0, ZOO, 10e6, 0),
    ),
    "ALE/Enduro-v5": (
        Reference("glucard, 290 labels of a person", 171.0, GLUCARD, 30208, 290, not_comparable=SUM_OF_A_TRAINING),
        Reference("glucard, true reward", 50.0, GLUCARD, 30208, 0, not_comparable=SUM_OF_A_TRAINING),
    ),
    "BeamRiderNoFrameskip-v4": (
        _paper("A2C on the true reward", 8150.0, 0, f"{FIGURE_3_MEAN}; between 7,800 and 8,500", is_target=True),
        _paper("3,300 synthetic labels", 10000.0, 3300, FIGURE_3_MEAN),
        _paper("5,600 synthetic labels", 9000.0, 5600, FIGURE_3_MEAN),
        _paper("10,000 synthetic labels", 11000.0, 10000, FIGURE_3_MEAN),
        _paper("5,500 labels of a person", 8500.0, 5500, FIGURE_3_HUMAN),
        Reference("Stable-Baselines3 A2C", 2890.0, ZOO, 10e6, 0),
        Reference("Stable-Baselines3 PPO", 3397.0, ZOO, 10e6, 0),
    ),
    "BreakoutNoFrameskip-v4": (
        _paper("A2C on the true reward", 640.0, 0, FIGURE_3_MEAN, is_target=True),
        _paper("3,300 synthetic labels", 10.0, 3300, FIGURE_3_MEAN),
        _paper("5,600 synthetic labels", 15.0, 5600, FIGURE_3_MEAN),
        _paper("10,000 synthetic labels", 75.0, 10000, f"{FIGURE_3_MEAN}; it goes up and down from 50 to 100"),
        _paper("5,500 labels of a person", 17.6, 5500, FIGURE_3_HUMAN),
        Reference("Stable-Baselines3 A2C", 280.0, ZOO, 10e6, 0),
        Reference("Stable-Baselines3 PPO", 398.0, ZOO, 10e6, 0),
    ),
    "QbertNoFrameskip-v4": (
        _paper("A2C on the true reward", 16100.0, 0, FIGURE_3_MEAN, is_target=True),
        _paper("3,300 synthetic labels", 4700.0, 3300, FIGURE_3_MEAN),
        _paper("5,600 synthetic labels", 13000.0, 5600, FIGURE_3_MEAN),
        _paper("10,000 synthetic labels", 11300.0, 10000, FIGURE_3_MEAN),
        _paper("5,500 labels of a person", 870.0, 5500, FIGURE_3_HUMAN),
        Reference("Stable-Baselines3 A2C", 3882.0, ZOO, 10e6, 0),
        Reference("Stable-Baselines3 PPO", 15627.0, ZOO, 10e6, 0),
    ),
    "SeaquestNoFrameskip-v4": (
        _paper("A2C on the true reward", 1790.0, 0, FIGURE_3_MEAN, is_target=True),
        _paper("3,300 synthetic labels", 860.0, 3300, FIGURE_3_MEAN),
        _paper("5,600 synthetic labels", 1175.0, 5600, f"{FIGURE_3_MEAN}; between 1,100 and 1,250"),
        _paper("10,000 synthetic labels", 2350.0, 10000, f"{FIGURE_3_MEAN}; between 2,200 and 2,500"),
        _paper("5,500 labels of a person", 990.0, 5500, FIGURE_3_HUMAN),
        Reference("Stable-Baselines3 A2C", 1721.0, ZOO, 10e6, 0),
        Reference("Stable-Baselines3 PPO", 1784.0, ZOO, 10e6, 0),
    ),
    "SpaceInvadersNoFrameskip-v4": (
        _paper("A2C on the true reward", 2850.0, 0, f"{FIGURE_3_MEAN}; between 2,700 and 3,000", is_target=True),
        _paper("3,300 synthetic labels", 830.0, 3300, FIGURE_3_MEAN),
        _paper("5,600 synthetic labels", 900.0, 5600, FIGURE_3_MEAN),
        _paper("10,000 synthetic labels", 980.0, 10000, FIGURE_3_MEAN),
        Reference("paper, 5,500 labels of a person", 700.0, f"{FIGURE_3_HUMAN} of 40 million timesteps", 40e6, 5500),
        Reference("Stable-Baselines3 A2C", 627.0, ZOO, 10e6, 0),
        Reference("Stable-Baselines3 PPO", 960.0, ZOO, 10e6, 0),
    ),
    "MovingDotNoFrameskip-v0": (
        Reference(
            "original implementation, true reward",
            20.0,
            "mrahtz/gym-moving-dot, README and training.png: the lower end of 20 to 25, where A2C ends",
            labels=0,
            is_target=True,
        ),
        Reference(
            "original implementation, synthetic labels",
            13.0,
            f"{ORIGINAL}, read off: about 13 after 150,000 timesteps, where the run ends, still rising",
            150e3,
        ),
    ),
}


def references(env_id: str) -> tuple[Reference, ...]:
    """Returns others' results in an environment; none if we know none."""
    return REFERENCES.get(env_id, ())


def target(env_id: str) -> Reference | None:
    """Returns the figure that verdicts compare runs with: ours, else the environment's own threshold, else None."""
    for reference in references(env_id):
        if reference.is_target:
            return reference
    threshold = gymnasium.registry[env_id].reward_threshold if env_id in gymnasium.registry else None
    if threshold is None:
        return None
    return Reference(
        "Gymnasium's mark", threshold, f"Gymnasium's registry: the reward at which {env_id} counts as solved"
    )

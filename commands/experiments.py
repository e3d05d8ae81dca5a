"""Named experiments: the paper's results as commands without a seed and a run folder."""

from __future__ import annotations

from dataclasses import dataclass

PREFERENCES, TRUE_REWARD = "train_policy_with_preferences", "train_policy_with_original_rewards"
MOVING_DOT, PONG, ENDURO = "MovingDotNoFrameskip-v0", "PongNoFrameskip-v4", "EnduroNoFrameskip-v4"
GLUCARDS_ENDURO = "ALE/Enduro-v5"
WALKER_WALK = "shimmy:dm_control/walker-walk-v0"  # of the packages dm_control and shimmy
# What bodies have by default, for reasons that envs/tuned.py tells. It is spelled out, so that a command stays what its
# results were measured with, whatever becomes the default.
ALL_LABELS = ("--no_bootstrap", "--no_hold_out")
FEW_PASSES = ("--n_initial_epochs", "25")
HELD_OUT = ("--bootstrap", "--hold_out", "--n_initial_epochs", "200")  # the opposite: as the paper has it
BEGINNING_ANEW = ("--policy_reset_million_timesteps", "0.25", "--policy_resets", "1")
WHOLE_EPISODES = ("--first_episode_steps", "0")
AS_OF_MANY = ("--label_passes", "None", "--reward_predictor_uses_actions")
ONE_START_OF_MANY = (*WHOLE_EPISODES, *AS_OF_MANY, "--policy_reset_million_timesteps", "0")
# The labels of each task: as many as the defaults of PPO ask for, then perhaps fewer.
BODIES_LABELS = {
    **dict.fromkeys(("Hopper", "Walker", "HalfCheetah", "Swimmer"), (700, 200)),
    "Reacher": (700,),
    "Ant": (1400,),
}
# The flags that each body needs besides with as many labels as in the paper.
WITH_MANY_LABELS = {
    "Hopper": ONE_START_OF_MANY,
    "Walker": BEGINNING_ANEW,
    "HalfCheetah": ("--algo", "ppo"),
    "Swimmer": (*AS_OF_MANY, *BEGINNING_ANEW),
    "Ant": ("--algo", "ppo"),
}
STATES_ALONE = ("--no_reward_predictor_uses_actions",)  # because actions earn nothing in these tasks
THREE_STARTS = ("--policy_reset_million_timesteps", "0.3", "--policy_resets", "2")  # which gait one finds is chance
GIVEN_UP = ("--first_episode_steps", "100")  # a fallen Hopper would learn to move on the ground
# The flags that each body needs besides with fewer labels.
WITH_FEW_LABELS = {
    "Hopper": (*STATES_ALONE, *THREE_STARTS, *GIVEN_UP),
    "Walker": (*STATES_ALONE, *THREE_STARTS),
    "HalfCheetah": ("--algo", "ppo"),
    "Swimmer": (*STATES_ALONE, *THREE_STARTS),
}
# More numbers of labels, to see by how few a body learns.
MORE_COUNTS = {"Hopper": (25, 50, 100, 350, 700, 1400), "Swimmer": (25, 50, 100)}
OFF_POLICY_BODIES = {"HalfCheetah": 200, "Ant": 400}  # labels of the bodies that SAC learns from fewer than PPO
# What each ablation of figures 5 and 6 changes.
ABLATIONS = {
    "random-queries": ("queries are random pairs", ("--query_selection", "random")),
    "no-ensemble": ("one predictor instead of three, and so random queries", ("--ensemble_size", "1")),
    "no-l2": ("no L2: the paper's 'no regularization'", ("--l2", "0")),
    "target": ("the predictor fitted to the clips' true returns", ("--reward_target", "true_return")),
    "no-segments": ("clips of one step; the paper's, on MuJoCo alone", ("--clip_steps", "1")),
}
# For few labels about a game in which points are rare: small batches, weights that decay, most steps without a reward.
RARE_POINTS = ("--n_initial_epochs", "20", "--label_batch_size", "8", "--l2", "1", "--reward_l1", "0.5")


@dataclass(frozen=True)
class Experiment:
    """A command line without its seed and its run folder."""

    title: str
    command: tuple[str, ...]
    ordinary: str = ""  # the experiment whose agent plays beside this one's in the final video
    ablates: str = ""  # the experiment that this one changes, in one thing, as in figures 5 and 6 of the paper


def _quick(million_timesteps: float) -> tuple[str, ...]:
    """Returns PPO with one pass over large rollouts: the fastest way to learn Pong that we found on a small machine."""
    rollouts = ("--n_envs", "32", "--n_steps", "64", "--ppo_epochs", "1", "--ppo_minibatches", "8")
    length = ("--million_timesteps", str(million_timesteps), "--lr_zero_million_timesteps", str(million_timesteps))
    return ("--algo", "ppo", *rollouts, "--lr", "5e-4", *length)


def _off_policy(replay_ratio: str, million_timesteps: str) -> tuple[str, ...]:
    """Returns SAC with so many updates per agent step."""
    length = ("--replay_ratio", replay_ratio, "--million_timesteps", million_timesteps)
    return ("--algo", "sac", "--gamma", "0.99", *length)


def _with_labels(env_id: str, n_labels: int, *flags: str) -> tuple[str, ...]:
    return (PREFERENCES, env_id, "--synthetic_prefs", "--max_prefs", str(n_labels), *flags)


def _few_labels(n: int) -> tuple[str, ...]:
    """Returns the moving dot with so few labels that all are asked for first, and every member learns from each.

    Clips have two steps, because the answer about a longer one tells less of each of its moves. The entropy bonus is
    smaller than the default's, because drawn actions win more so.
    """
    asked = ("--n_initial_prefs", str(n), "--n_initial_rounds", "8", "--clip_steps", "2")
    return _with_labels(MOVING_DOT, n, *asked, "--ensemble_size", "3", *ALL_LABELS, "--ent_coef", "0.3")


def _few_of_a_body(env_id: str, n: int, *flags: str) -> tuple[str, ...]:
    """Returns a body with so few labels that each is trained on often, and a quarter of them first, as of 700."""
    # After more passes the predictor errs on what the policy does next.
    asked = ("--n_initial_prefs", str(n // 4), *FEW_PASSES, "--label_passes", "50")
    return _with_labels(env_id, n, *ALL_LABELS, *asked, *flags)


def _ablations(prefix: str, task: str, n_labels: int, original: str, command: tuple[str, ...]) -> dict[str, Experiment]:
    """Returns the paper's ablations (section 3.3) of an experiment, which has this name, command and labels."""
    flags = {**ABLATIONS, "no-online-queries": ("all labels asked for first", ("--n_initial_prefs", str(n_labels)))}
    return {
        f"{prefix}-{name}": Experiment(f"{task}, {what}", (*command, *differs), ablates=original)
        for name, (what, differs) in flags.items()
    }


def _trick(title: str, env_id: str, teacher: str, n_labels: int, ordinary: str, *flags: str) -> Experiment:
    """Returns an experiment in which a teacher of examples/circus.py gives so many labels."""
    command = (PREFERENCES, env_id, "--teacher", f"examples.circus:{teacher}", "--max_prefs", str(n_labels), *flags)
    return Experiment(f"{title}, {n_labels:,} labels", command, ordinary)


def _bodies() -> dict[str, Experiment]:
    """Returns the paper's MuJoCo tasks on the true reward and on labels, and Gymnasium's tasks on the true reward."""
    found = {}
    for task, (n_labels, *fewer) in BODIES_LABELS.items():
        name, env_id = task.lower(), f"{task}-v1"
        few_passes = () if task == "HalfCheetah" else FEW_PASSES  # which earned a little more with all passes
        command = _with_labels(env_id, n_labels, *ALL_LABELS, *few_passes, *WITH_MANY_LABELS.get(task, ()))
        found[f"{name}-{n_labels}"] = Experiment(f"{task}, {n_labels:,} labels", command)
        for n in fewer:
            title = f"{task}, {n:,} labels, each trained on 50 times"
            found[f"{name}-{n}"] = Experiment(title, _few_of_a_body(env_id, n, *WITH_FEW_LABELS[task]))
        as_before = ("--algo", "ppo") if task in OFF_POLICY_BODIES else WHOLE_EPISODES if task == "Hopper" else ()
        found[f"{name}-true"] = Experiment(f"{task} on the true reward", (TRUE_REWARD, env_id, *as_before))
    for task, n in OFF_POLICY_BODIES.items():
        name, env_id, learner = task.lower(), f"{task}-v1", _off_policy("0.125", "1")
        found[f"{name}-{n}-sac"] = Experiment(f"{task}, {n} labels, SAC", _few_of_a_body(env_id, n, *learner))
        found[f"{name}-true-sac"] = Experiment(f"{task} on the true reward, SAC", (TRUE_REWARD, env_id, *learner))
    for like, name, differs in (
        ("hopper-200", "hopper-true-starts", (*THREE_STARTS, *GIVEN_UP)),
        ("walker-200", "walker-true-starts", THREE_STARTS),
        ("swimmer-200", "swimmer-true-starts", THREE_STARTS),
        ("walker-700", "walker-true-two-starts", BEGINNING_ANEW),
    ):
        task = like.split("-")[0].title()
        title = f"{task} on the true reward, with starts and episodes as in {like}"
        found[name] = Experiment(title, (TRUE_REWARD, f"{task}-v1", *differs))
    for name in ("hopper-200", "swimmer-200", "halfcheetah-200-sac"):
        task, labels, *_ = name.split("-")
        found |= _ablations(f"ablation-{task}", found[name].title, int(labels), name, found[name].command)
    hopper = found["hopper-200"]
    for teacher in ("mistake", "equal"):
        title = f"{hopper.title}, of B-Pref's teacher `{teacher}`"
        found[f"hopper-200-{teacher}"] = Experiment(title, (*hopper.command, "--teacher", teacher))
    for task, counts in MORE_COUNTS.items():
        for n in counts:
            title = f"{task}, {n:,} labels and all else as in {task.lower()}-200"
            command = _few_of_a_body(f"{task}-v1", n, *WITH_FEW_LABELS[task])
            found[f"{task.lower()}-{n}-starts"] = Experiment(title, command)
    for env_id in (
        *("Hopper-v5", "Walker2d-v5", "HalfCheetah-v5", "Swimmer-v5", "Reacher-v5", "Ant-v5"),
        *("InvertedPendulum-v5", "InvertedDoublePendulum-v5"),
        "Ant-v4",  # without contact forces; most published figures are of versions before 5
    ):
        length = ("--million_timesteps", "1")
        title = f"Gymnasium's {env_id}, unmodified, on its own reward"
        found[f"{env_id.lower()}-true"] = Experiment(title, (TRUE_REWARD, env_id, *length))
    return found


# glucard's set-up: whole games, PPO with a memory, as many steps, and a predictor that sees actions; a script replaces
# the person. Gas and steering take effect soon, hence the short discount.
BRIEF = (
    *("--whole_games", "--algo", "ppo", "--policy_network", "nature_lstm", "--n_envs", "8", "--n_steps", "64"),
    *("--ppo_epochs", "4", "--ppo_minibatches", "4", "--lr", "5e-4", "--lr_zero_million_timesteps", "0"),
    *("--gamma", "0.9", "--ent_coef", "0.03"),
    *("--million_timesteps", "0.030208", "--eval_interval_million_timesteps", "0.030208"),
)
# In so short a run each label has to be used often and early, and few clips should show the untrained agent.
BRIEF_ON_LABELS = (
    *(*BRIEF, "--reward_predictor_uses_actions", "--n_initial_prefs", "100"),
    *("--labels_per_step", "0.3", "--max_segs", "200"),
)
FIRST_LAPS = ("--no_whole_games", "--no_reward_predictor_uses_actions")  # as the paper has Enduro
AS_PEOPLE = (*_quick(5), "--whole_games", "--reward_predictor_uses_actions")
# What Pong's ablations start from: this project's defaults; the paper started from dropout and adaptive L2.
ORIGINAL = _with_labels(PONG, 5500, *_quick(3))
EXPERIMENTS = {
    "moving-dot": Experiment("the moving dot, 500 labels", (PREFERENCES, MOVING_DOT, "--synthetic_prefs")),
    "moving-dot-true": Experiment("the moving dot on the true reward", (TRUE_REWARD, MOVING_DOT)),
    **{
        f"moving-dot-{n}": Experiment(
            f"the moving dot, {n} labels about short clips, in eight rounds before it learns, each trained on 15 times",
            (*_few_labels(n), "--label_passes", "15"),
        )
        for n in (20, 40, 100, 200)
    },
    **{
        f"moving-dot-{teacher}": Experiment(
            f"the moving dot, 500 labels of B-Pref's teacher `{teacher}`",
            (PREFERENCES, MOVING_DOT, "--teacher", teacher),
        )
        for teacher in ("mistake", "equal")
    },
    "moving-dot-40-mistake": Experiment(
        "the moving dot, 40 labels as in moving-dot-40, of which one in ten is reversed",
        (*_few_labels(40), "--label_passes", "15", "--teacher", "mistake"),
    ),
    "pong-10k": Experiment("Pong, 10,000 labels", _with_labels(PONG, 10_000, *_quick(3))),
    "pong-5.6k": Experiment("Pong, 5,600 labels", _with_labels(PONG, 5600, *_quick(3))),
    "pong-3.3k": Experiment("Pong, 3,300 labels", _with_labels(PONG, 3300, *_quick(3))),
    "pong-500": Experiment(
        "Pong, 500 labels, half of them before it learns, and a predictor that rewards few steps",
        _with_labels(PONG, 500, *_quick(2.5), "--n_initial_prefs", "250", *ALL_LABELS, *RARE_POINTS),
    ),
    "pong-true": Experiment("Pong on the true reward", (TRUE_REWARD, PONG, *_quick(3))),
    "pong-true-a2c": Experiment("Pong on the true reward, the paper's A2C", (TRUE_REWARD, PONG, "--algo", "a2c")),
    "pong-paper": Experiment(
        "Pong, 5,500 labels, the paper's settings where it names them", _with_labels(PONG, 5500, "--preset", "paper")
    ),
    "enduro": Experiment(
        "Enduro, judged by its score, 5,500 labels",
        _with_labels(ENDURO, 5500, "--teacher", "oracle", *_quick(10), *FIRST_LAPS),
    ),
    "enduro-as-people": _trick("Enduro, judged as people judge", ENDURO, "overtaking", 5500, "", *AS_PEOPLE),
    "enduro-true": Experiment("Enduro on the true reward", (TRUE_REWARD, ENDURO, *_quick(10), *FIRST_LAPS)),
    "enduro-290": _trick("Enduro in 30,208 steps", GLUCARDS_ENDURO, "racing", 290, "", *BRIEF_ON_LABELS),
    "enduro-290-true": Experiment("Enduro in 30,208 steps on the true reward", (TRUE_REWARD, GLUCARDS_ENDURO, *BRIEF)),
    "beamrider": Experiment("BeamRider, 5,500 labels", _with_labels("BeamRiderNoFrameskip-v4", 5500, *_quick(10))),
    "breakout": Experiment("Breakout, 5,500 labels", _with_labels("BreakoutNoFrameskip-v4", 5500, *_quick(10))),
    **{
        f"{game.lower()}-3m": Experiment(
            f"{game}, 5,500 labels, 3 million steps of the paper's 50",
            _with_labels(f"{game}NoFrameskip-v4", 5500, *_quick(3)),
        )
        for game in ("BeamRider", "Breakout", "Qbert", "Seaquest", "SpaceInvaders")
    },
    "ablation-many-passes": Experiment(
        "the moving dot, 40 labels, each trained on 280 times instead of 15", _few_labels(40)
    ),
    "ablation-none": Experiment("Pong, 5,500 labels, to compare the ablations with", ORIGINAL),
    "ablation-no-regularisation": Experiment(
        "Pong, neither L2 nor dropout nor batch norm",
        (*ORIGINAL, "--l2", "0", "--dropout", "0", "--no_batchnorm"),
        ablates="ablation-none",
    ),
    **_ablations("ablation", "Pong", 5500, "ablation-none", ORIGINAL),
    **_bodies(),
    # As many labels and steps as PEBBLE, SURF and QPA have there. One environment needs no process of its own.
    "walker-walk-100": Experiment(
        "dm_control's walker-walk, 100 labels, SAC",
        _with_labels(
            *(WALKER_WALK, 100, "--n_initial_prefs", "25", "--n_initial_epochs", "50", "--label_passes", "50"),
            *(*ALL_LABELS, "--clip_steps", "50", "--n_envs", "1", "--n_steps", "64", *_off_policy("0.25", "0.5")),
        ),
    ),
    # As many labels as the paper's people gave (section 3.2), if the paper has the trick.
    # An untrained Hopper lies most of the time, and clips of that cannot show anybody how it should jump.
    "circus-backflip": _trick(
        "Hopper turns backflips",
        *("Hopper-v1", "backflip", 900, "hopper-true"),
        *("--explore_million_timesteps", "0.2", "--n_initial_prefs", "450", *HELD_OUT, *ONE_START_OF_MANY),
    ),
    "circus-one-leg": _trick(
        "HalfCheetah runs on one leg",
        *("HalfCheetah-v1", "on_one_leg", 800, "halfcheetah-true"),
        *(*HELD_OUT, "--algo", "ppo"),
    ),
    "circus-ballet": _trick(
        "Walker stands on one leg",
        *("Walker-v1", "ballet", 800, "walker-true"),
        *(*HELD_OUT, "--policy_reset_million_timesteps", "0"),
    ),
    "circus-reacher": _trick(
        "Reacher keeps away from its target",
        *("Reacher-v1", "away_from_the_target", 300, "reacher-true"),
        *HELD_OUT,
    ),
    "circus-level": _trick(
        "Enduro, level with other cars",
        *(ENDURO, "level_with_others", 1300, "enduro-as-people"),
        *(*_quick(1), *FIRST_LAPS),
    ),
}

"""What the agent should do in each environment, for labellers whom nobody told anything else."""

from .bodies import TASKS, task_id
from .registry import MOVING_DOT_ID, EnvError, find_spec, is_atari

# By ROM, or by name without the version.
SENTENCES: dict[str, str] = {
    "beam_rider": "Shoot the enemy ships, and do not get hit.",
    "breakout": "Keep the ball in play, and hit as many bricks with it as you can.",
    "enduro": "Drive fast and pass as many cars as you can, without bumping into any.",
    "pong": "The green paddle, on the right, should get the ball past the other one.",
    "qbert": "Hop on cubes to change their colour; do not fall off or get caught.",
    "seaquest": "Shoot fish and submarines, fetch divers, and come up for air in time.",
    "space_invaders": "Shoot the invaders, and do not get hit.",
    "Ant": "Run forward, to the right, as fast as you can.",
    "CartPole": "Keep the pole upright and the cart near the middle.",
    "HalfCheetah": "Run forward, to the right, as fast as you can.",
    "Hopper": "Hop forward, to the right, as fast as you can without falling.",
    "MovingDot": "Bring the white dot to the middle of the picture, and keep it there.",
    "InvertedDoublePendulum": "Keep both poles upright.",
    "InvertedPendulum": "Keep the pole upright.",
    "Reacher": "Bring the tip of the arm to the dot, and keep it there.",
    "Swimmer": "Swim forward, to the right, as fast as you can.",
    "Walker": "Walk forward, to the right, as fast as you can without falling.",
    "Walker2d": "Walk forward, to the right, as fast as you can without falling.",
}
ANY_ATARI_GAME = "Score as many points as you can, and do not lose lives."


def task_of(env_id: str) -> str:
    """Returns what good behaviour is, in one sentence; empty for an environment that is not known here."""
    if env_id == MOVING_DOT_ID:
        return SENTENCES["MovingDot"]
    if (name := task_id(env_id)) in TASKS:
        return SENTENCES[name.removeprefix("Short").removesuffix("-v1")]
    try:
        spec = find_spec(env_id)
    except EnvError:
        return ""
    return SENTENCES.get(spec.kwargs["game"], ANY_ATARI_GAME) if is_atari(spec) else SENTENCES.get(spec.name, "")

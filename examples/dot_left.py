"""A teacher of what the environment does not reward: the moving dot should go to the left edge and stay there.

python run.py train_policy_with_preferences MovingDotNoFrameskip-v0 --teacher examples.dot_left:to_the_left
"""

import numpy as np

from drlhp.data.segment import Segment


def to_the_left(segment: Segment) -> np.ndarray:
    """How far left each of the T steps took the dot, in columns of the picture, (T,).

    A step's observation holds four grey pictures of 84x84 pixels, the newest last, from before its action; the dot is
    all that is not black. Where the last action led is not in the segment, so that step counts for nothing.
    """
    newest = segment.stacked()[:, -1].astype(float)  # (T, 84, 84)
    light = newest.sum(axis=1)  # (T, 84), by column
    x = light @ np.arange(84) / light.sum(axis=1)  # (T,)
    return np.append(x[:-1] - x[1:], 0.0)

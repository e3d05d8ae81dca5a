"""A custom teacher, whose goal differs from the environment's reward: the moving dot should go to the left edge.

python run.py train_policy_with_preferences MovingDotNoFrameskip-v0 --teacher examples.dot_left:to_the_left
"""

import numpy as np

from drlhp.data.segment import Segment


def to_the_left(segment: Segment) -> np.ndarray:
    """Returns how far left each of the T steps took the dot, in columns of the picture, (T,).

    A step's observation holds four gray pictures of 84x84 pixels from before its action, the newest last. Everything
    but the dot is black. The last step counts 0, because the segment does not show the result of its action.
    """
    newest = segment.stacked()[:, -1].astype(float)  # (T, 84, 84)
    light = newest.sum(axis=1)  # (T, 84), by column
    x = light @ np.arange(84) / light.sum(axis=1)  # (T,)
    return np.append(x[:-1] - x[1:], 0.0)

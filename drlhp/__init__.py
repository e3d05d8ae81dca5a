"""Rewards learned from human preferences, around any Gymnasium environment, for any RL code.

    from drlhp import HumanPreferencesEnvWrapper

    env = HumanPreferencesEnvWrapper(gymnasium.make("CartPole-v1"), segment_length=25)

People, or a synthetic teacher, compare segments of what the agent does. A reward predictor learns from the answers
(Christiano et al. 2017, arXiv 1706.03741), and its reward replaces the environment's.

    HumanPreferencesEnvWrapper  wraps a Gymnasium environment
    HumanPreferencesVectorEnv   wraps a Gymnasium vector environment
    HumanPreferencesSB3VecEnv   wraps a vector environment of Stable-Baselines3; only if that is installed
    Settings                    lists the arguments that the three wrappers take, with their defaults
    PredictorConfig             lists the reward predictor's own settings, for the argument reward_predictor_network
    PrefDB                      opens a store of segments and answers, the file prefs.db of a run
    UserError                   an error that the user can fix; its message says how; the base of the next three
    SpaceError                  observations or actions cannot be used
    CheckpointError             a checkpoint cannot be read, or does not fit
    PrefDBError                 a store cannot be read, written, or used with this environment
    ChildError                  a background process has died; the message says which and why
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from drlhp.errors import ChildError, PrefDBError, SpaceError, UserError
    from drlhp.runtime.checkpoint import CheckpointError
    from drlhp.wrapper.env import HumanPreferencesEnvWrapper, HumanPreferencesVectorEnv
    from drlhp.wrapper.sb3 import HumanPreferencesSB3VecEnv as HumanPreferencesSB3VecEnv
    from drlhp.wrapper.settings import Settings
    from pref_db import PrefDB
    from reward_predictor import PredictorConfig

__version__ = "0.1.0"

# The module of each public name. It is imported when the name is first used, so that `import drlhp` loads no PyTorch,
# and a lower floor (such as `drlhp.data`) can be imported without the upper ones.
_PLACES = {
    "CheckpointError": "drlhp.runtime.checkpoint",
    "ChildError": "drlhp.errors",
    "HumanPreferencesEnvWrapper": "drlhp.wrapper.env",
    "HumanPreferencesSB3VecEnv": "drlhp.wrapper.sb3",
    "HumanPreferencesVectorEnv": "drlhp.wrapper.env",
    "PrefDB": "pref_db",
    "PrefDBError": "drlhp.errors",
    "PredictorConfig": "reward_predictor",
    "Settings": "drlhp.wrapper.settings",
    "SpaceError": "drlhp.errors",
    "UserError": "drlhp.errors",
}
__all__ = [
    "CheckpointError",
    "ChildError",
    "HumanPreferencesEnvWrapper",
    "HumanPreferencesVectorEnv",
    "PredictorConfig",
    "PrefDB",
    "PrefDBError",
    "Settings",
    "SpaceError",
    "UserError",
]
if importlib.util.find_spec("stable_baselines3"):  # without it, `from drlhp import *` would fail
    __all__ += ["HumanPreferencesSB3VecEnv"]


def __getattr__(name: str) -> Any:
    """Imports a public name from its module."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    """Lists the public names, and those that Python itself gives to modules."""
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])

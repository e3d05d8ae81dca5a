"""The keyword arguments of the wrappers, and their check."""

from __future__ import annotations

import difflib
import logging
import multiprocessing
import multiprocessing.util
import pickle
import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import numpy as np
import torch

from drlhp.bounds import SEED, at_least, check
from drlhp.errors import ArgumentError, UserError
from drlhp.networks.architectures import MakeNetwork
from drlhp.wrapper.spaces import Transform
from pref_interface import PrefsConfig
from reward_predictor import PredictorConfig

Network = Literal["cnn", "feature_points"]


@dataclass(frozen=True)
class Settings:
    """The wrappers' keyword arguments. Steps are those of all environments together."""

    reward_predictor_network: Network | PredictorConfig | MakeNetwork | None = None
    """Network for pictures, `cnn` (the paper's, and the default) or `feature_points`; vectors always get two hidden
    layers. Or a `drlhp.PredictorConfig`, which holds every setting of the predictor. Or a network of your own: a
    function or class that makes a torch module of the shape of an observation."""
    train_reward: bool = True
    """Train a reward predictor, in a process of its own."""
    collect_prefs: bool = True
    """Ask about segments, in a process of its own."""
    segment_length: Annotated[int, at_least(1)] = 40
    """Steps of a segment."""
    mp_context: Literal["spawn", "forkserver", "fork"] = "spawn"
    """How the processes are started, as `multiprocessing` names it."""
    prefs_dir: str | Path | None = None
    """Folder whose stored preferences to start from: a run's, or a log_dir, whose newest run counts."""
    log_dir: str | Path = "drlhp_logs/"
    """Folder in which each wrapper that stores anything makes a folder of its own."""
    max_prefs_in_db: Annotated[int, at_least(2)] = 10000
    """Labels after which no more questions are asked."""
    obs_transform_func: Transform | None = None
    """Makes a picture or a vector of an observation, for spaces that hold several things."""
    n_initial_training_steps: Annotated[int, at_least(1)] = 50
    """Training batches, at least, before the predicted reward replaces the environment's."""
    n_initial_prefs: Annotated[int, at_least(2)] = 40
    """Labels that training begins with."""
    pretrained_reward_predictor_dir: str | Path | None = None
    """Folder of a reward predictor to start from: a run's, or a log_dir, whose newest run counts."""
    reward_predictor_ckpt_interval: Annotated[int, at_least(1)] = 10
    """Training batches between checkpoints of the predictor."""
    reward_predictor_refresh_interval: Annotated[int, at_least(1)] = 10
    """Training batches between updates of the wrapper's copy of the weights."""
    validation_interval: Annotated[int, at_least(1)] = 10
    """Training batches between measurements on held-out labels."""
    reward_database_refresh_interval: Annotated[int, at_least(1)] = 1
    """Training batches between reads of new labels from the store."""
    synthetic_prefs: bool = True
    """Let the environment's own reward answer; otherwise people do."""
    max_pref_interface_segs: Annotated[int, at_least(2)] = 25
    """Newest segments from which the pairs to ask about are drawn."""
    zoom_ratio: Annotated[int, at_least(1)] = 4
    """Magnification of observations for people, if the environment does not render; up to 960 pixels."""
    channels: Annotated[int, at_least(1)] = 3
    """Channels of one picture; people see the newest of stacked pictures."""
    env_wrapper_log_level: int = logging.INFO
    """Lowest level of the wrapper's own messages that is logged."""
    reward_predictor_log_level: int = logging.INFO
    """The same for the trainer, in reward_predictor.log."""
    pref_interface_log_level: int = logging.INFO
    """The same for the preference interface, in pref_interface.log."""
    ui: Literal["auto", "window", "web", "notebook"] = "auto"
    """Where people answer: in a window, on a web page, or on that page in a frame of a notebook (`page_link`); `auto`
    is a window if there is a display."""
    seed: Annotated[int, SEED] = 0
    """Seed of the pairs and of the predictor's first weights."""

    @classmethod
    def of(cls, wrapper: str, *args: Any, **kwargs: Any) -> Settings:
        """Returns the settings that the arguments of a wrapper name. Raises ArgumentError if one is unknown."""
        names = [field.name for field in fields(cls)]
        for name in kwargs:
            if name not in names:
                (nearest,) = difflib.get_close_matches(name, names, n=1, cutoff=0.0)
                raise ArgumentError(
                    f"{wrapper} has no argument {name!r}: the nearest is {nearest!r}, and help({wrapper}) lists all."
                )
        return cls(*args, **kwargs)

    def check(self) -> None:
        """Raises UserError if a value cannot work."""
        check(self)
        self._check_folders()
        self._check_log_levels()
        self._check_network()
        if not (self.obs_transform_func is None or callable(self.obs_transform_func)):
            raise UserError(
                f"obs_transform_func must be a function of an observation, not {self.obs_transform_func!r}."
            )
        methods = multiprocessing.get_all_start_methods()
        if self.mp_context not in methods:
            raise UserError(f"mp_context must be one of {', '.join(methods)}, not {self.mp_context!r}.")
        if self.n_initial_prefs > self.max_prefs_in_db:
            raise UserError(f"n_initial_prefs ({self.n_initial_prefs}) must not exceed max_prefs_in_db.")
        if self.train_reward and not self.collect_prefs and self.prefs_dir is None:
            raise UserError("there is nothing to train on: set prefs_dir to stored preferences, or collect_prefs=True.")

    def _check_folders(self) -> None:
        for name in ("log_dir", "prefs_dir", "pretrained_reward_predictor_dir"):
            place = getattr(self, name)
            if not (isinstance(place, (str, Path)) or (place is None and name != "log_dir")):
                raise UserError(f"{name} must be a folder, not {place!r}.")

    def _check_log_levels(self) -> None:
        for name in ("env_wrapper_log_level", "reward_predictor_log_level", "pref_interface_log_level"):
            level = getattr(self, name)
            if not isinstance(level, int) and level not in list(logging.getLevelNamesMapping()):
                raise UserError(f"{name} must be a level of logging, such as logging.INFO, not {level!r}.")

    def _check_network(self) -> None:
        network = self.reward_predictor_network
        if isinstance(network, PredictorConfig):
            check(network)
            if network.reward_target == "true_return" and not self.synthetic_prefs:
                raise UserError(
                    "reward_target 'true_return' learns from the true reward whatever people answer: leave it out, or "
                    "set synthetic_prefs=True."
                )
        elif not (network is None or network in get_args(Network) or self.make_network):
            raise UserError(
                "reward_predictor_network must be 'cnn', 'feature_points', a drlhp.PredictorConfig, a function that "
                f"makes a torch module of the shape of an observation, or None, not {' '.join(repr(network).split())}."
            )
        if self.make_network and self.train_reward and not _is_importable(self.make_network, self.mp_context):
            raise UserError(
                f"reward_predictor_network cannot be {network!r}, which the trainer's process cannot import: make it a "
                "function or class at the top level of a module."
            )

    @property
    def asks_people(self) -> bool:
        """Whether people answer."""
        return self.collect_prefs and not self.synthetic_prefs

    @property
    def make_network(self) -> MakeNetwork | None:
        """Returns the user's own network; None if there is none."""
        network = self.reward_predictor_network
        return network if callable(network) and not isinstance(network, torch.nn.Module) else None

    def predictor_config(self, kind: str) -> PredictorConfig:
        """Returns the predictor's settings for observations of that kind.

        Rewards have a standard deviation of 1, not the paper's 0.05, because other people's RL code has its defaults
        for rewards of that size.
        """
        network = self.reward_predictor_network
        if not isinstance(network, PredictorConfig):
            points = network == "feature_points"
            network = PredictorConfig(
                reward_predictor_network=network if network in ("cnn", "feature_points") else "cnn",
                reward_predictor_uses_actions=True,
                reward_predictor_learning_rate=3e-3 if points else 1e-3,
                ensemble_size=3 if kind == "vector" else 1,
                reward_std=1.0,
                labels_per_step=0.1,
            )
        # A checkpoint holds plain values only: PyTorch would refuse to load NumPy's.
        changed = plain(network) | {"reward_predictor_ckpt_interval": self.reward_predictor_ckpt_interval}
        return replace(network, **changed)

    @property
    def prefs_config(self) -> PrefsConfig:
        """Returns the settings of the preference interface."""
        return PrefsConfig(
            synthetic_prefs=self.synthetic_prefs,
            n_initial_prefs=self.n_initial_prefs,
            max_prefs=self.max_prefs_in_db,
            max_segs=self.max_pref_interface_segs,
            clip_steps=self.segment_length,
            label_schedule="constant",
        )


def plain(settings: Settings | PredictorConfig) -> dict[str, Any]:
    """Returns, as Python's own values, the fields that hold NumPy's."""
    return {name: value.item() for name, value in vars(settings).items() if isinstance(value, np.generic)}


def _is_importable(thing: Any, mp_context: str) -> bool:
    """Returns whether another process can import a thing by name; only a fork finds what was typed into a notebook."""
    if getattr(thing, "__module__", "") == "__main__" and not hasattr(sys.modules["__main__"], "__file__"):
        return mp_context == "fork"
    try:
        pickle.dumps(thing)
    except (pickle.PicklingError, AttributeError, TypeError):
        return False
    return True

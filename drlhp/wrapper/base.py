"""What the three wrappers have in common: the methods and numbers that users see besides the environment's own."""

from __future__ import annotations

import warnings
import weakref
from pathlib import Path
from typing import Any

from drlhp.errors import UserError
from drlhp.wrapper.description import EnvDescription
from drlhp.wrapper.settings import Settings
from drlhp.wrapper.system import PreferenceSystem
from pref_db import PrefDB

FOR_EACH = (
    "HumanPreferencesEnvWrapper takes a gymnasium.Env, HumanPreferencesVectorEnv a gymnasium.vector.VectorEnv, "
    "HumanPreferencesSB3VecEnv a VecEnv of Stable-Baselines3"
)


class Counter:
    """A number that another process writes."""

    def __init__(self, shared: Any) -> None:
        self._shared = shared

    @property
    def value(self) -> int:
        """The number as it is now."""
        return 0 if self._shared is None else int(self._shared.value)


class PreferenceWrapper:
    """An environment whose reward is learned from preferences.

    Attributes:
        pref_db_size: its `value` is the number of labels in the store.
        reward_training_steps: its `value` is the number of batches that the reward predictor was trained on.
    """

    system: PreferenceSystem
    pref_db_size: Counter
    reward_training_steps: Counter

    def _check_kind(self, env: Any, kind: type) -> None:
        """Raises UserError if another wrapper is the right one for the environment, or none is."""
        if not isinstance(env, kind):
            raise UserError(f"{type(self).__name__} cannot wrap {env!r}: {FOR_EACH}.")

    def _start(self, settings: Settings, env: EnvDescription) -> None:
        """Starts what is behind the wrapper, and makes sure that it ends with the wrapper."""
        self.system = system = PreferenceSystem(settings, env)
        channels = system.background and system.background.channels
        self.pref_db_size = Counter(channels and channels.n_labels)
        self.reward_training_steps = Counter(channels and channels.trained_batches)
        weakref.finalize(self, system.close)  # a wrapper that is dropped without `close` leaves nothing behind

    @property
    def using_reward_from_predictor(self) -> bool:
        """Whether `step` returns predicted rewards; warns if no reward predictor is or will be there."""
        system = self.system
        if not system.closed:
            system.look()
        if system.predicted.copy is None and not system.settings.train_reward:  # a loop that waits would never end
            warnings.warn(
                "there will be no predicted rewards, because no predictor is trained: leave out train_reward=False, or "
                "set pretrained_reward_predictor_dir.",
                stacklevel=2,
            )
        return system.predicted.replace_true

    @property
    def segments_collected(self) -> int:
        """How many segments were cut so far."""
        return self.system.collection.n_segments

    @property
    def run_dir(self) -> Path | None:
        """This wrapper's folder in log_dir: preferences, checkpoints, curves, logs. None if nothing is stored."""
        return None if self.system.background is None else self.system.background.run_dir

    def save_prefs(self) -> Path | None:
        """Returns the file of all preferences, which holds each answer as soon as it is given.

        Pass the file, or its folder, as prefs_dir. Warns and returns None if no preferences are stored.
        """
        self.system.check_open()
        if self.run_dir is None:
            warnings.warn("no preferences are stored, because none are collected or trained on.", stacklevel=2)
            return None
        store = self.run_dir / "prefs.db"
        PrefDB.open(store).close()  # this folds the write-ahead log into the file, so that the file can be copied alone
        return store

    def save_reward_predictor(self) -> Path | None:
        """Writes a checkpoint that no newer one removes, and returns its path.

        Pass it as pretrained_reward_predictor_dir; or pass its folder, for the newest checkpoint. Warns and returns
        None if there is nothing to save.
        """
        self.system.check_open()
        background = self.system.background
        if background is None or background.board is None:
            warnings.warn("no reward predictor is being trained, so there is none to save.", stacklevel=2)
            return None
        saved = background.save_reward_predictor(meanwhile=self.system.look)
        if saved is None:
            warnings.warn("the reward predictor was not trained yet, so there is nothing to save.", stacklevel=2)
        return saved

    def page_link(self) -> str:
        """Waits until the labelling page is served, and returns its link. Whoever has the link can answer.

        In a notebook, `IPython.display.IFrame(env.page_link(), "100%", 640)` shows the page, with `ui="notebook"`.

        Raises:
            UserError: no people answer on a page.
        """
        self.system.check_open()
        settings, background = self.system.settings, self.system.background
        if background is None or not settings.asks_people or settings.ui not in ("web", "notebook"):
            raise UserError("no people answer on a page here: set synthetic_prefs=False and ui='web' or 'notebook'.")
        return background.page_link(meanwhile=self.system.look)

    def start_segment_collection(self) -> None:
        """Cuts segments from now on, as a new wrapper does."""
        self._collect_segments(True)

    def stop_segment_collection(self) -> None:
        """Cuts no segments until `start_segment_collection` is called, for example during an evaluation."""
        self._collect_segments(False)

    def _collect_segments(self, wanted: bool) -> None:
        self.system.check_open()
        if self.system.collection.on == wanted:
            state = "collected" if wanted else "left alone"
            warnings.warn(f"segments are being {state} already.", stacklevel=3)
        self.system.collection.switch(wanted)

    def switch_to_true_reward(self) -> None:
        """Lets `step` return the environment's own reward, for an evaluation; warns if that changes nothing."""
        self._return_true_reward(True)

    def switch_to_predicted_reward(self) -> None:
        """Lets `step` return the predicted reward again; warns if that changes nothing."""
        self._return_true_reward(False)

    def _return_true_reward(self, wanted: bool) -> None:
        self.system.check_open()
        self.system.look()
        predicted = self.system.predicted
        if predicted.copy is None:
            warnings.warn("there is no trained reward predictor yet, so rewards are the true ones.", stacklevel=3)
        elif predicted.forced_true == wanted:
            warnings.warn(f"rewards are the {'true' if wanted else 'predicted'} ones already.", stacklevel=3)
        predicted.forced_true = wanted  # holds for a predictor that becomes ready later, during an evaluation

"""Lets a `--synchronous` run that was stopped go on as if it never had: the whole ring's state, between two turns."""

from __future__ import annotations

import json
import logging
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from a2c.worker import PolicyWorker
from commands.config import RunConfig, gathers, settings
from drlhp.runtime import checkpoint
from drlhp.runtime.channels import Channels
from drlhp.runtime.snapshot import restored, state_of
from drlhp.runtime.weights import WeightsBoard
from drlhp.training.trainer import Trainer
from pref_interface import PrefInterface

log = logging.getLogger("run")

FORMAT = 2  # of what the parts keep; a snapshot of another format is not restored
# Settings with which a run can go on exactly from where it was with others.
MAY_CHANGE = {
    *("million_timesteps", "lr_zero_million_timesteps", "max_prefs", "log_interval"),
    *("policy_ckpt_interval", "reward_predictor_ckpt_interval", "eval_interval_million_timesteps", "eval_episodes"),
    "all_frames",  # No flag changes it in a resumed run, and older snapshots lack it.
}


class Snapshots:
    """Takes snapshots of a run in its folder `synchronous/`, and restores the newest one.

    Each holds all that later turns depend on. People never answer twice alike, so a run that asks people takes none.

    Args:
        path: the run's folder.
        run_id: of the run, so that no snapshot of another one is restored.
    """

    def __init__(self, config: RunConfig, path: Path, run_id: str) -> None:
        self.env_id, self.folder = config.env_id, path / "synchronous"
        self.interval = config.policy.policy_ckpt_interval
        self.takes = config.synchronous and (config.prefs.synthetic_prefs or not gathers(config))
        self.settings = {name: value for name, value in settings(config.as_dict()).items() if name not in MAY_CHANGE}
        self.settings = json.loads(json.dumps({"format": FORMAT, "run_id": run_id, **self.settings}))
        self.state = self._find() if self.takes and config.resume else None
        if self.state is None:
            shutil.rmtree(self.folder, ignore_errors=True)  # the run goes on otherwise than it would have from there
        self.turns: int = self.state["step"] if self.state else 0
        self._taken_at, self._updates = time.monotonic(), 0

    def _find(self) -> dict[str, Any] | None:
        """Returns the newest snapshot; None if there is none, or if it was taken with other settings."""
        if not checkpoint.list_checkpoints(self.folder):
            return None
        state = checkpoint.load(checkpoint.find(self.folder, ""), kind="synchronous", env_id=self.env_id)
        if state["settings"] != self.settings:
            log.warning(
                "the settings or the program have changed, so the run goes on from its checkpoints in new environments"
            )
            return None
        return state

    @property
    def began_at(self) -> int | None:
        """The updates after which the restored run made its environments; None if nothing is to be restored."""
        began_at: int | None = self.state["parts"].get("PolicyWorker", {}).get("began_at") if self.state else None
        return began_at

    def begin(self, parts: Sequence[Any], channels: Channels, boards: Sequence[WeightsBoard | None]) -> None:
        """Restores all parts, or takes the first snapshot; call it when they are made."""
        self._parts, self._shared = parts, {"channels": channels, "boards": list(boards)}
        state, self.state = self.state, None
        if state is not None:
            log.info("goes on from turn %d", self.turns)
            _share_horizon(parts)
            for part in parts:
                restored(part, state["parts"][type(part).__name__])
            restored(channels, state["channels"])
            for board, of_board in zip(boards, state["boards"], strict=True):
                restored(board, of_board)
            torch.set_rng_state(state["random"])
        elif self.takes:
            self.take()

    def count(self) -> None:
        """Counts a turn, after which a snapshot may be due: as often as checkpoints of the policy."""
        self.turns += 1
        updates = sum(part.updates // self.interval for part in self._parts if isinstance(part, PolicyWorker))
        if self.takes and (updates > self._updates or time.monotonic() > self._taken_at + checkpoint.MAX_SECONDS):
            self.take()
        self._updates = updates

    def take(self) -> None:
        """Writes a snapshot; call it between two turns."""
        self._taken_at = time.monotonic()
        parts = {type(part).__name__: state_of(part) for part in self._parts}
        state = {"kind": "synchronous", "env_id": self.env_id, "settings": self.settings, "parts": parts}
        checkpoint.save(self.folder, self.turns, {**state, **state_of(self._shared), "random": torch.get_rng_state()})

    @contextmanager
    def whole_turns(self) -> Iterator[list[int]]:
        """Lets Ctrl-C and `kill` wait for the end of the turn: yields a list that is no longer empty after the first.

        At the end it takes a snapshot, and raises the KeyboardInterrupt. The second Ctrl-C raises it at once; what was
        done since the newest snapshot is then done again.
        """
        pressed: list[int] = []

        def note(number: int, frame: Any) -> None:
            pressed.append(number)
            if len(pressed) > 1:
                raise KeyboardInterrupt

        before: dict[int, Any] = {}
        if self.takes:
            before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            for number in before:
                signal.signal(number, note)
            yield pressed
            if self.takes:
                self.take()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        if pressed:
            raise KeyboardInterrupt


def _share_horizon(parts: Sequence[Any]) -> None:
    """Lets the trainer see as many answers as the interface, which may have to give the newest ones again."""
    for interface in parts:
        if isinstance(interface, PrefInterface):
            for trainer in parts:
                if isinstance(trainer, Trainer):
                    trainer.db.horizon = interface.db.horizon

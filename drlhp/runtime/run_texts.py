"""Writes what a run was told beside its TensorBoard curves: the command, and the settings as hyperparameters."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drlhp.errors import UserError
from drlhp.runtime.regular_files import read_regular
from drlhp.runtime.run_files import MAX_CONFIG

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

FIGURES = ("evaluation/deterministic_mean", "evaluation/sampled_mean", "reward_predictor/validation_accuracy")


def write_texts(writer: SummaryWriter, run_dir: Path) -> None:
    """Adds the command and the settings in a run folder's config.json to TensorBoard; nothing if there is none."""
    try:
        record = json.loads(read_regular(run_dir / "config.json", MAX_CONFIG))
        command, config = shlex.join(record["command"]), flat(record["config"])
    except (OSError, UserError, ValueError, KeyError, TypeError, AttributeError):
        return  # a wrapper writes none, and what reads it to resume says what is wrong with it
    from torch.utils.tensorboard.summary import hparams

    lines = [f"    {command}", f"Started {record.get('started', '')}, revision {record.get('git_revision', '')}"]
    writer.add_text("run/command", "\n\n".join(lines))
    for summary in hparams(config, dict.fromkeys(FIGURES, 0.0)):  # it writes no point of these
        writer._get_file_writer().add_summary(summary)


def flat(config: dict[str, Any]) -> dict[str, bool | float | str]:
    """Returns the settings by flag, in types that TensorBoard knows; those without a value are left out."""
    settings: dict[str, Any] = {}
    for name, value in config.items():
        settings |= value if isinstance(value, dict) else {name: value}
    kinds = (bool, int, float, str)
    return {
        name: value if isinstance(value, kinds) else str(value) for name, value in settings.items() if value is not None
    }

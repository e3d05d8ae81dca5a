"""The reward predictor that a wrapper begins with: new, or from a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from drlhp.networks.device import is_forked, use_threads
from drlhp.runtime import checkpoint
from drlhp.wrapper.description import WrappedEnv
from drlhp.wrapper.folders import predictor_checkpoint
from drlhp.wrapper.settings import Settings
from drlhp.wrapper.spaces import ActionEncoder, ObservationEncoder
from reward_predictor import PredictorConfig, PredictorInputs, RewardPredictor


@dataclass(frozen=True)
class Pretrained:
    """A checkpoint of a reward predictor, and its contents."""

    path: Path
    state: dict[str, Any]

    @classmethod
    def load(cls, settings: Settings, env_id: str) -> Pretrained | None:
        """Returns the checkpoint that the settings name, or None if they name none. Raises CheckpointError."""
        if settings.pretrained_reward_predictor_dir is None:
            return None
        path = predictor_checkpoint(Path(settings.pretrained_reward_predictor_dir))
        return cls(path, checkpoint.load(path, kind="reward_predictor", env_id=env_id))

    @property
    def network(self) -> str | None:
        """The name of its network."""
        name: str | None = self.state["config"].get("reward_predictor_network")
        return name

    def check_fit(self, inputs: PredictorInputs, spaces: str, *, own_network: bool) -> None:
        """Raises CheckpointError if it was trained on other inputs, or with another kind of network.

        Args:
            spaces: names the spaces that give these inputs.
            own_network: the user's own network is used, not a built-in one.
        """
        mine = inputs.as_dict()
        theirs = self.state.get("inputs", mine)
        if theirs != mine:
            names = {"observation_shape": "observations of shape", "n_actions": "discrete actions:"}
            differ = [name for name in mine if mine[name] != theirs[name]]
            what = "; ".join(f"{names.get(name, name)} {theirs[name]} and not {mine[name]}" for name in differ)
            raise checkpoint.CheckpointError(
                f"{self.path} was trained on other spaces than {spaces} ({what}): wrap the environment as it was "
                "wrapped then, or train a predictor on this one."
            )
        theirs_is_own = self.state.get("own_network", False)
        if theirs_is_own != own_network:
            trained, wanted = ("a network of its own", "that") if theirs_is_own else ("a built-in network", "None")
            raise checkpoint.CheckpointError(
                f"{self.path} was trained with {trained}: pass {wanted} as reward_predictor_network."
            )


@dataclass(frozen=True)
class FirstPredictor:
    """A reward predictor before this wrapper trains it."""

    predictor: RewardPredictor
    config: PredictorConfig
    pretrained: Pretrained | None

    @classmethod
    def build(
        cls,
        settings: Settings,
        env: WrappedEnv,
        observations: ObservationEncoder,
        actions: ActionEncoder,
        pretrained: Pretrained | None,
    ) -> FirstPredictor:
        """Builds the predictor, with the weights of the checkpoint if there is one.

        Raises CheckpointError if the checkpoint does not fit the environment or the settings.
        """
        config = settings.predictor_config(env.kind)
        if pretrained is not None:
            spaces = f"{observations.space} and {actions.space}"
            pretrained.check_fit(env.inputs, spaces, own_network=settings.make_network is not None)
            with checkpoint.entries(pretrained.path):
                config = replace(config, **pretrained.state["config"])
        predictor = RewardPredictor(env.inputs, config, make_network=settings.make_network)
        if pretrained is not None:
            with checkpoint.entries(pretrained.path):
                checkpoint.fill(predictor, pretrained.state["weights"], pretrained.path)
        if is_forked():
            use_threads(1)
        return cls(predictor, config, pretrained)

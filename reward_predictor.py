"""The reward predictor: an ensemble of networks fitted to comparisons, and the policy's copy of it.

The method is section 2.2 of Christiano et al. 2017; numbers for Atari are from its appendix A.2.
"""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from drlhp.bounds import BELOW_ONE, FINITE, POSITIVE, at_least
from drlhp.data.segment import Segment
from drlhp.networks import architectures as networks
from drlhp.networks.batches import observations_of
from drlhp.networks.device import CPU, has_bf16, to_device, trains_in_bf16
from drlhp.networks.readers import Statistics
from drlhp.runtime.weights import WeightsBoard

DIVERGED = (
    "the training of the reward predictor diverged, so that it predicts no numbers; go on with a lower "
    "--reward_predictor_learning_rate."
)
NORMALISER_STEPS = 1000  # of the policy's newest steps, which give the reward its zero and scale
NORMALISER_STRIDE = 7  # of these one in seven: whole episodes of all environments, not a beginning that is all reward


@dataclass(frozen=True)
class PredictorConfig:
    """Reward predictor; the defaults are the paper's for Atari (appendix A.2), where it names them."""

    reward_predictor_network: Literal["cnn", "feature_points"] = "cnn"
    """Body for pixel observations: the paper's CNN, or learned feature points."""
    reward_predictor_uses_actions: bool = False
    """Whether the predictor sees the action beside the observation."""
    reward_predictor_normalises_pixels: bool = True
    """Read pixels, and the numbers of vectors, relative to their mean and deviation in the initial labels' segments,
    not as they are."""
    ensemble_size: Annotated[int, at_least(1)] = 3
    """Members of the ensemble."""
    bootstrap: bool = True
    """Train each member on its own bootstrap of the labels, as in the paper; --no_bootstrap trains each on all of them,
    from a start of its own, since a bootstrap leaves out a third."""
    hold_out: bool = True
    """Keep a fifth of the labels out of the training, by which it is seen how well the others are predicted, and the
    pretraining ends when that gets no better; --no_hold_out trains on all."""
    reward_predictor_learning_rate: Annotated[float, POSITIVE] = 1e-3
    """Learning rate of the reward predictor (AdamW)."""
    batchnorm: bool = True
    """Batch norm on the convolutions."""
    dropout: Annotated[float, BELOW_ONE] = 0.0
    """Dropout rate on the convolutions, or on both hidden layers of vector observations; feature points have none.
    The paper has 0.5 on Atari, with which 500 labels teach this network next to nothing."""
    l2: Annotated[float | Literal["adaptive"], FINITE] = 0.01
    """L2 coefficient of the reward predictor: each training batch shrinks the weights by this share times the learning
    rate (AdamW's weight decay). The paper's is `adaptive`: one for each member, which holds its loss on the labels that
    its bootstrap leaves out between 1.1 and 1.5 times its training loss."""
    crop_steps: Annotated[int, at_least(0)] = 0
    """Steps that a random crop takes from both segments of a pair in a training batch, at most; 0 does not crop."""
    reward_target: Literal["preferences", "true_return"] = "preferences"
    """What the predictor is fitted to: answers, or, by least squares, the true returns of the clips that were asked
    about (an ablation of the paper's; only with a synthetic teacher, whose answers and mistakes then do not count)."""
    weigh_labellers: bool = False
    """Let a label count by the reliability of who gave it, as far as pairs that were answered more than once tell."""
    reward_std: Annotated[float, POSITIVE] = 0.05
    """Standard deviation that predicted rewards are scaled to, about a mean of zero."""
    label_error_rate: Annotated[float, BELOW_ONE] = 0.1
    """Chance that an answer is random, which keeps a single wrong one from weighing much."""
    label_buffer: Annotated[int, at_least(1)] = 3000
    """Labels trained on: the newest."""
    n_initial_epochs: Annotated[int, at_least(1)] = 200
    """Passes over the initial labels before the policy starts, at most: they end when validation loss stops falling,
    which without --hold_out there is none to see."""
    labels_per_step: Annotated[float, FINITE] = 0.02
    """Labels trained on for each agent step of the policy. The paper has 0.1: with pixels too much for a machine of 2
    cores, and most bodies earn no more with it."""
    label_batch_size: Annotated[int, at_least(1)] = 16
    """Labels per training batch of the reward predictor."""
    load_reward_predictor_ckpt_dir: str | None = None
    """Folder with a reward predictor checkpoint to start from."""
    reward_predictor_ckpt_interval: Annotated[int, at_least(1)] = 500
    """Training batches of the reward predictor between checkpoints, of which there is one every two minutes anyway."""

    @property
    def bootstraps(self) -> bool:
        """Whether members are trained on bootstraps; a single predictor has all labels."""
        return self.bootstrap and self.ensemble_size > 1


@dataclass(frozen=True)
class PredictorInputs:
    """What the networks take: the shape of an observation and the size of an action."""

    kind: Literal["pixels", "vector"]
    observation_shape: tuple[int, ...]
    n_actions: int | None
    action_dim: int | None


class RewardPredictor(nn.Module):
    """The ensemble: (observation, action) -> reward by each member, and their average.

    Each member's reward is normalised by itself, then the members are averaged (section 2.2.1). The normaliser's
    statistics are buffers: saved, moved and published with the weights.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        inputs: PredictorInputs,
        config: PredictorConfig,
        device: torch.device = CPU,
        make_network: networks.MakeNetwork | None = None,
    ) -> None:
        """`make_network` takes the place of the networks that the config names."""
        super().__init__()
        self.device, self.kind = device, inputs.kind
        self.n_members, self.reward_std = config.ensemble_size, config.reward_std
        self.body: nn.Module
        if make_network is not None:
            self.body = networks.OwnNetwork(make_network, inputs.observation_shape, self.n_members)
        elif inputs.kind == "vector":
            self.body = networks.RewardMLP(inputs.observation_shape[0], self.n_members, dropout=config.dropout)
        elif config.reward_predictor_network == "feature_points":
            self.body = networks.FeaturePoints(self.n_members)
        else:
            self.body = networks.RewardCNN(
                inputs.observation_shape[0],
                self.n_members,
                batchnorm=config.batchnorm,
                dropout=config.dropout,
            )
        n_features = int(self.body.n_features)
        self.n_frames: int | None = getattr(self.body, "n_frames", None)
        self.n_actions = inputs.n_actions if config.reward_predictor_uses_actions else None
        self.action_dim = inputs.action_dim if config.reward_predictor_uses_actions else None
        self.joint = None
        if self.action_dim:
            self.joint = networks.EnsembleLinear(self.n_members, n_features + self.action_dim, n_features)
        # One output for each discrete action that the predictor may see, of which the action taken counts.
        self.out = networks.EnsembleLinear(self.n_members, n_features, self.n_actions or 1)
        self.register_buffer("mean", torch.zeros(self.n_members))
        self.register_buffer("std", torch.ones(self.n_members))
        # bfloat16 pays on convolutions; feature points need more digits for their positions than it has.
        convolves = isinstance(self.body, networks.RewardCNN)
        self.autocast = convolves and has_bf16(device)
        self.autocast_in_training = convolves and trains_in_bf16(device)
        self.to(device)
        self.eval()

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        """(B, ...), (B,) or (B, A) -> raw rewards (members, B)."""
        autocast = self.autocast_in_training if self.training else self.autocast
        with torch.autocast(self.device.type, torch.bfloat16, enabled=autocast):
            features = self.body(observations)  # (members, B, features)
        features = features.float()
        if self.joint is not None:
            beside = actions.expand(self.n_members, -1, -1)
            features = F.leaky_relu(self.joint(torch.cat([features, beside], dim=2)), 0.01)
        rewards = self.out(features)  # (members, B, actions or 1)
        if self.n_actions:
            return rewards.gather(2, actions.expand(self.n_members, -1).unsqueeze(2)).squeeze(2)
        return rewards.squeeze(2)

    def predict(self, observations: Tensor, actions: Tensor) -> Tensor:
        """What `forward` returns, computed in parts on a CPU, which is faster and takes less memory.

        For prediction alone: in training the statistics of batch norm are those of the whole batch.
        """
        if observations.dim() < 4 or self.device.type != "cpu":
            return self(observations, actions)
        parts = (values.split(networks.PICTURES_AT_ONCE) for values in (observations, actions))
        return torch.cat([self(*part) for part in zip(*parts, strict=True)], 1)

    @torch.no_grad()
    def folded(self) -> RewardPredictor:
        """What predicts the same in less time: a copy that cannot be trained, or itself where there is no such."""
        if not isinstance(self.body, networks.RewardCNN):
            return self
        twin = copy.deepcopy(self)
        twin.body.fold()  # type: ignore[operator]
        if twin.autocast:  # then once here, and not of every weight at each prediction
            twin.body.to(torch.bfloat16)
            twin.autocast = False
        return twin

    @torch.no_grad()
    def settle_batchnorm(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Takes the statistics of batch norm from these steps, with the present weights; returns their raw rewards.

        Averages over past training batches belong to weights that have moved on since: with them a predictor that
        is right while it trains can fall to chance when it predicts.
        """
        for module in self.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.train()
        raw: Tensor = self(observations, actions)
        self.eval()
        return raw

    def observe(self, segments: Iterable[Segment]) -> None:
        """Takes the statistics by which pixels, or the numbers of vectors, are normalised from these segments."""
        if isinstance(self.body, (networks.RewardCNN, networks.RewardMLP)):
            shape = self.body.reader.shift.shape  # (1, C, H, W) or (D,)
            seen = shape[-2:] if len(shape) == 4 else shape
            statistics = Statistics(*seen).to(self.device)
            for segment in segments:
                statistics.add(torch.from_numpy(segment.observations.reshape(-1, *seen)))
            self.body.reader.normalise(*statistics.mean_and_std())

    def is_finite(self) -> bool:
        """Whether all weights and statistics are numbers; a card is waited for once."""
        values = [tensor for tensor in self.state_dict().values() if tensor.is_floating_point()]
        return bool(torch.stack(torch._foreach_norm(values)).isfinite().all())

    def normalised(self, raw: Tensor) -> Tensor:
        """Raw rewards (members, B) -> zero mean and `reward_std` for each member."""
        return (raw - self.mean[:, None]) / self.std[:, None] * self.reward_std

    @torch.inference_mode()
    def member_rewards(self, observations: np.ndarray | Tensor, actions: np.ndarray | Tensor) -> np.ndarray:
        """(B, ...), (B,) or (B, A) -> (members, B) normalised rewards."""
        raw = self.predict(to_device(observations, self.device), to_device(actions, self.device))
        return self.normalised(raw).cpu().numpy()

    def reward(self, observations: np.ndarray | Tensor, actions: np.ndarray | Tensor) -> np.ndarray:
        """(B, ...), (B,) or (B, A) -> predicted reward (B,): the mean of the normalised members."""
        mean: np.ndarray = self.member_rewards(observations, actions).mean(0)
        return mean

    @torch.inference_mode()
    def segment_returns(self, segments: list[Segment]) -> np.ndarray:
        """(segments, members) raw rewards summed over each segment."""
        observations = to_device(observations_of(segments, self.n_frames), self.device)
        actions = to_device(np.concatenate([segment.actions for segment in segments]), self.device)
        raw = self.predict(observations, actions).cpu()
        parts = raw.split([len(segment) for segment in segments], dim=1)
        returns: np.ndarray = torch.stack([part.sum(1) for part in parts]).numpy()
        return returns

    @torch.no_grad()
    def fit_normaliser(self, raw: Tensor, like: Tensor | None = None) -> None:
        """Sets the statistics to those of raw rewards (members, B) on recent steps.

        Or so that these rewards, when normalised, have mean and deviation of `like` (members, B): rewards as they were.
        """
        self.mean.copy_(raw.mean(1))
        self.std.copy_(raw.std(1).clamp(min=1e-6))
        if like is not None:
            self.std.mul_(self.reward_std / like.std(1).clamp(min=1e-6))
            self.mean.sub_(like.mean(1) * self.std / self.reward_std)


def preference_loss(returns_a: Tensor, returns_b: Tensor, mu: Tensor, error_rate: float) -> Tensor:
    """Cross-entropy between answers and predictions (eq. 1), if answers may be random (section 2.2.3).

    Args:
        returns_a, returns_b: (..., B) sums of predicted reward over the two segments.
        mu: (B, 2) the answers.
        error_rate: the chance that an answer is; the paper's is 0.1.

    Returns:
        (..., B) losses, each at most -ln(error_rate / 2).
    """
    at_random = torch.full((), math.log(error_rate / 2) if error_rate else -math.inf, device=returns_a.device)

    def log_probability(difference: Tensor) -> Tensor:  # finite, with a gradient, also where nothing is random
        return torch.logaddexp(F.logsigmoid(difference) + math.log(1 - error_rate), at_random)

    difference = returns_a - returns_b
    return -(mu[:, 0] * log_probability(difference) + mu[:, 1] * log_probability(-difference))


def return_loss(returns_a: Tensor, returns_b: Tensor, true_returns: Tensor) -> Tensor:
    """Squared error of predicted returns, the mean over a pair's two segments ("target" in section 3.3).

    Args:
        returns_a, returns_b: (..., B) sums of predicted reward over the two segments.
        true_returns: (2, B) sums of true reward over a and over b.

    Returns:
        (..., B) losses.
    """
    return ((returns_a - true_returns[0]).square() + (returns_b - true_returns[1]).square()) / 2


def agreement(difference: Tensor, mu: Tensor) -> tuple[int, int]:
    """How many answers the predicted preference agrees with, and of how many: answers of equality do not count."""
    decisive = mu[:, 0] != mu[:, 1]
    right = (difference > 0) == (mu[:, 0] > mu[:, 1])
    return int((right & decisive).sum()), int(decisive.sum())


# What a checkpoint must record to build the same networks again.
ARCHITECTURE = (
    "reward_predictor_network",
    "reward_predictor_uses_actions",
    "ensemble_size",
    "batchnorm",
    "dropout",
    "reward_std",
)


def inputs_as_dict(inputs: PredictorInputs) -> dict[str, Any]:
    """What a checkpoint says of the observations and actions that its predictor was trained on."""
    return {**asdict(inputs), "observation_shape": list(inputs.observation_shape)}


@dataclass(frozen=True)
class PredictorCopySpec:
    """Builds the policy's own copy of the predictor in the policy's process."""

    inputs: PredictorInputs
    config: PredictorConfig
    board: WeightsBoard
    device: torch.device = CPU

    def build(self) -> PredictorCopy:
        return PredictorCopy(RewardPredictor(self.inputs, self.config, self.device), self.board)


class PredictorCopy:
    """A predictor that follows the weights on the board.

    New weights shift the reward of everything a little, and a constant shift of the reward is a hundredfold shift of
    the values at a discount of 0.99. So the copy normalises anew on what the policy has just seen: pixels to zero mean
    and the wanted deviation; vectors, whose scale the worker sees to (`a2c.returns.ValueUnits`), only at first, and
    then so that what was seen is worth as much as before. Else the zero and the scale would change with how many bodies
    happen to lie down just then, and the values with them.
    """

    def __init__(self, predictor: RewardPredictor, board: WeightsBoard) -> None:
        self.predictor, self.board, self.version = predictor, board, 0
        self._quick = predictor  # what predicts: the same with batch norm folded, where it has any
        self._recent: deque[tuple[Tensor, Tensor]] = deque()
        self._n_recent = 0  # steps in them
        self._skip = 0  # of the next steps, before one is kept
        # Of vectors, once fitted: mean and deviation of each member's rewards, with which a resumed run goes on.
        self.normaliser: tuple[Tensor, Tensor] | None = None

    @property
    def trained(self) -> bool:
        """Whether there are weights to take over, or were."""
        return self.board.version > 0

    @torch.inference_mode()
    def refresh(self) -> int:
        """Takes over the newest weights; returns their version, 0 while there are none."""
        if self.board.version > self.version:
            recent = [torch.cat(parts) for parts in zip(*self._recent, strict=True)]
            fits = self._n_recent >= NORMALISER_STEPS
            before = self._quick.normalised(self._quick.predict(*recent)) if fits and self.normaliser else None
            self.version = self.board.fetch(self.predictor)
            self._quick = self.predictor.folded()
            if fits:
                self._quick.fit_normaliser(self._quick.predict(*recent), like=before)
                if self.predictor.kind == "vector":
                    self.normaliser = self._quick.mean.clone(), self._quick.std.clone()
            elif self.normaliser:  # of before a resumption; what was published has one of other steps
                self._quick.mean.copy_(self.normaliser[0])
                self._quick.std.copy_(self.normaliser[1])
        return self.version

    def in_own_measure(self, rewards: np.ndarray) -> np.ndarray:
        """(members, ...) normalised rewards -> as the members gave them, which is how they compare segments."""
        shape = (-1, *(1 for _ in rewards.shape[1:]))
        mean, std = (values.cpu().numpy().reshape(shape) for values in (self._quick.mean, self._quick.std))
        raw: np.ndarray = rewards / self._quick.reward_std * std + mean
        return raw

    def member_rewards(self, observations: np.ndarray | Tensor, actions: np.ndarray | Tensor) -> np.ndarray:
        """(B, ...), (B,) -> (members, B) normalised rewards."""
        device, kept = self.predictor.device, slice(self._skip, None, NORMALISER_STRIDE)
        moves_on = len(actions) % NORMALISER_STRIDE == 0  # else it would keep to the same few environments
        self._skip = (self._skip - len(actions) + moves_on) % NORMALISER_STRIDE
        observations, actions = to_device(observations, device), to_device(actions, device)
        self._recent.append((observations[kept].clone(), actions[kept].clone()))
        self._n_recent += len(self._recent[-1][1])
        while self._n_recent - len(self._recent[0][1]) >= NORMALISER_STEPS:
            self._n_recent -= len(self._recent.popleft()[1])
        return self._quick.member_rewards(observations, actions)

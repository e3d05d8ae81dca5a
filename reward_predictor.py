"""The reward predictor: an ensemble of networks fitted to comparisons, and the policy's copy of it.

The method is section 2.2 of Christiano et al. 2017; numbers for Atari are from its appendix A.2.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from drlhp.bounds import BELOW_ONE, FINITE, POSITIVE, at_least
from drlhp.data.segment import Segment
from drlhp.networks import architectures as networks
from drlhp.networks.batches import observations_of
from drlhp.networks.device import CPU, has_bf16, to_device, trains_in_bf16
from drlhp.networks.inputs import PredictorInputs
from drlhp.networks.readers import Statistics
from drlhp.networks.recent import ALIKE, RecentSteps, tell_scale
from drlhp.runtime.weights import WeightsBoard

DIVERGED = (
    "the training of the reward predictor diverged, so that it predicts no numbers; go on with a lower "
    "--reward_predictor_learning_rate."
)
NORMALISER_STEPS = 1000  # recent steps of the policy, which give the reward its zero and scale
NORMALISER_STRIDE = 7  # one in seven steps is kept: whole episodes of all environments, not only their rewarding starts


@dataclass(frozen=True)
class PredictorConfig:
    """Reward predictor; values here are the paper's for Atari (appendix A.2), and envs/tuned.py has what differs."""

    reward_predictor_network: Literal["cnn", "feature_points"] = "cnn"
    """Body for pixel observations: the paper's CNN, or learned feature points."""
    reward_predictor_uses_actions: bool = False
    """Whether the predictor sees the action beside the observation."""
    reward_predictor_normalises_pixels: bool = True
    """Normalise pixels, and the numbers of vectors, by their mean and standard deviation in the segments of the initial
    labels."""
    ensemble_size: Annotated[int, at_least(1)] = 3
    """Members of the ensemble."""
    bootstrap: bool = True
    """Train each member on its own bootstrap of the labels, as in the paper, which leaves out a third of them.
    --no_bootstrap trains each member on all labels; they differ by their first weights."""
    hold_out: bool = True
    """Hold a fifth of the labels out of training. Pretraining ends when the loss on them stops falling.
    --no_hold_out trains on all labels, so overfitting cannot be detected."""
    reward_predictor_learning_rate: Annotated[float, POSITIVE] = 1e-3
    """Learning rate of the reward predictor (AdamW)."""
    batchnorm: bool = True
    """Batch norm on the convolutions."""
    dropout: Annotated[float, BELOW_ONE] = 0.0
    """Dropout rate on the convolutions, or on both hidden layers of vector observations; feature points have none.
    The paper has 0.5 on Atari, but with it this network learns almost nothing from 500 labels."""
    l2: Annotated[float | Literal["adaptive"], FINITE] = 0.01
    """L2 coefficient of the reward predictor: each training batch shrinks the weights by this share times the learning
    rate (AdamW's weight decay). The paper's is `adaptive`: one for each member, which holds its loss on the labels that
    its bootstrap leaves out between 1.1 and 1.5 times its training loss."""
    reward_l1: Annotated[float, FINITE] = 0.0
    """Weight of the mean absolute raw reward in the loss (L1), so that most steps earn nothing: for tasks in which few
    steps decide an answer, such as the end of a rally."""
    crop_steps: Annotated[int, at_least(0)] = 0
    """Most steps that a random crop removes from both segments of a pair in a training batch; 0 does not crop."""
    reward_target: Literal["preferences", "true_return"] = "preferences"
    """What the predictor is fitted to: the answers, or the true returns of the clips by least squares. The latter is an
    ablation of the paper's, needs a synthetic teacher, and ignores its answers."""
    weigh_labellers: bool = False
    """Weigh each label by its labeller's reliability, estimated from pairs that were answered more than once."""
    reward_std: Annotated[float, POSITIVE] = 0.05
    """Standard deviation of the predicted rewards, whose mean is zero."""
    label_error_rate: Annotated[float, BELOW_ONE] = 0.1
    """Assumed probability that an answer is random, so that a single wrong answer weighs little."""
    label_buffer: Annotated[int, at_least(1)] = 3000
    """Labels to train on, the newest; older ones are left out."""
    n_initial_epochs: Annotated[int, at_least(1)] = 200
    """Most passes over the initial labels before the policy starts. With --hold_out they end when the validation loss
    stops falling."""
    labels_per_step: Annotated[float, FINITE] = 0.02
    """Labels trained on for each agent step of the policy. The paper has 0.1. With pixels that is too much for
    2 cores, and most bodies learn no better with it."""
    label_passes: Annotated[int | None, at_least(1)] = None
    """Most passes over the labels in the whole training, those over the initial ones included; new labels bring more.
    Many passes over few labels fit the reward to chance. None: as many as --labels_per_step makes."""
    label_batch_size: Annotated[int, at_least(1)] = 16
    """Labels per training batch of the reward predictor."""
    load_reward_predictor_ckpt_dir: str | None = None
    """Folder with a reward predictor checkpoint to start from."""
    reward_predictor_ckpt_interval: Annotated[int, at_least(1)] = 500
    """Training batches of the reward predictor between checkpoints; one is written every two minutes anyway."""

    @property
    def bootstraps(self) -> bool:
        """Whether members are trained on bootstraps; a single predictor has all labels."""
        return self.bootstrap and self.ensemble_size > 1

    @property
    def initial_passes(self) -> int:
        """Most passes over the initial labels."""
        return min(self.n_initial_epochs, self.label_passes or self.n_initial_epochs)


class RewardPredictor(nn.Module):
    """The ensemble: (observation, action) -> raw reward by each member.

    Whoever wants one reward normalises each member by itself with `normalised`, then averages the members (section
    2.2.1). The normaliser's statistics are buffers: saved, moved and published with the weights.
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
        """Builds the networks that the config names, or those that `make_network` makes."""
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
                inputs.observation_shape[0], self.n_members, batchnorm=config.batchnorm, dropout=config.dropout
            )
        n_features = int(self.body.n_features)
        self.n_frames: int | None = getattr(self.body, "n_frames", None)
        self.n_actions = inputs.n_actions if config.reward_predictor_uses_actions else None
        self.action_dim = inputs.action_dim if config.reward_predictor_uses_actions else None
        self.joint = None
        if self.action_dim:
            self.joint = networks.EnsembleLinear(self.n_members, n_features + self.action_dim, n_features)
        # One output for each discrete action, if the predictor sees actions; the output of the action taken counts.
        self.out = networks.EnsembleLinear(self.n_members, n_features, self.n_actions or 1)
        self.register_buffer("mean", torch.zeros(self.n_members))
        self.register_buffer("std", torch.ones(self.n_members))
        # bfloat16 pays off on convolutions; the positions of feature points need more digits than it has.
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
            features = F.leaky_relu(self.joint(torch.cat([features, actions.expand(self.n_members, -1, -1)], 2)), 0.01)
        rewards = self.out(features)  # (members, B, actions or 1)
        if self.n_actions:
            return rewards.gather(2, actions.expand(self.n_members, -1).unsqueeze(2)).squeeze(2)
        return rewards.squeeze(2)

    def predict(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Returns what `forward` returns; on a CPU it works in parts, which is faster and takes less memory.

        Only for prediction: in training, the statistics of batch norm are those of the whole batch.
        """
        if observations.dim() < 4 or self.device.type != "cpu":
            return self(observations, actions)
        parts = (values.split(networks.PICTURES_AT_ONCE) for values in (observations, actions))
        return torch.cat([self(*part) for part in zip(*parts, strict=True)], 1)

    @torch.no_grad()
    def folded(self) -> RewardPredictor:
        """Returns a copy that predicts the same in less time, but cannot be trained; without convolutions, itself."""
        if not isinstance(self.body, networks.RewardCNN):
            return self
        twin = copy.deepcopy(self)
        twin.body.fold()  # type: ignore[operator]
        if twin.autocast:  # converts the weights once, instead of at each prediction
            twin.body.to(torch.bfloat16)
            twin.autocast = False
        return twin

    @torch.no_grad()
    def settle_batchnorm(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Sets the statistics of batch norm to those of these steps, with the present weights; returns raw rewards.

        Averages over past training batches belong to older weights. With them, a predictor that is right in training
        can fall to chance when it predicts.
        """
        for module in self.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.train()
        raw: Tensor = self(observations, actions)
        self.eval()
        return raw

    def observe(self, segments: Iterable[Segment]) -> None:
        """Normalises pixels, or the numbers of vectors, by the statistics of these segments."""
        if isinstance(self.body, (networks.RewardCNN, networks.RewardMLP)):
            shape = self.body.reader.shift.shape  # (1, C, H, W) or (D,)
            seen = shape[-2:] if len(shape) == 4 else shape
            statistics = Statistics(*seen).to(self.device)
            for segment in segments:
                statistics.add(torch.from_numpy(segment.observations.reshape(-1, *seen)))
            self.body.reader.normalise(*statistics.mean_and_std())

    def is_finite(self) -> bool:
        """Returns whether all weights and statistics are finite; waits for a GPU only once."""
        values = [tensor for tensor in self.state_dict().values() if tensor.is_floating_point()]
        return bool(torch.stack(torch._foreach_norm(values)).isfinite().all())

    def normalised(self, raw: np.ndarray, n_steps: int | np.ndarray = 1) -> np.ndarray:
        """Scales each member's rewards to zero mean and a standard deviation of `reward_std`.

        Args:
            raw: (members, B) raw rewards, or their sums over several steps.
            n_steps: the steps in each sum, (B,) or one number.
        """
        mean, std = (values.cpu().numpy()[:, None] for values in (self.mean, self.std))
        scaled: np.ndarray = (raw - n_steps * mean) / std * self.reward_std
        return scaled

    @torch.inference_mode()
    def member_rewards(self, observations: np.ndarray | Tensor, actions: np.ndarray | Tensor) -> np.ndarray:
        """(B, ...), (B,) or (B, A) -> (members, B) raw rewards."""
        return self.predict(to_device(observations, self.device), to_device(actions, self.device)).cpu().numpy()

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
    def fit_normaliser(self, raw: Tensor, like: np.ndarray | None = None) -> None:
        """Sets the statistics to those of raw rewards (members, B) on recent steps; alike ones stay unscaled.

        With `like` (members, B), the earlier rewards of these steps, which must not be alike, the normalised rewards
        have its mean and standard deviation instead.
        """
        std = raw.std(1)
        self.mean.copy_(raw.mean(1))
        self.std.copy_(torch.where(std > ALIKE, std, 1.0))
        if like is not None:
            earlier = torch.from_numpy(like).to(raw.device)
            self.std.mul_(self.reward_std / earlier.std(1))
            self.mean.sub_(earlier.mean(1) * self.std / self.reward_std)


def preference_loss(returns_a: Tensor, returns_b: Tensor, mu: Tensor, error_rate: float) -> Tensor:
    """Returns the cross-entropy between answers and predictions (eq. 1), if answers may be random (section 2.2.3).

    Args:
        returns_a, returns_b: (..., B) sums of predicted reward over the two segments.
        mu: (B, 2) the answers.
        error_rate: the chance that an answer is random; the paper's is 0.1.

    Returns:
        (..., B) losses, each at most -ln(error_rate / 2).
    """
    at_random = torch.full((), math.log(error_rate / 2) if error_rate else -math.inf, device=returns_a.device)

    def log_probability(difference: Tensor) -> Tensor:  # finite, with a gradient, even if no answer is random
        return torch.logaddexp(F.logsigmoid(difference) + math.log(1 - error_rate), at_random)

    difference = returns_a - returns_b
    return -(mu[:, 0] * log_probability(difference) + mu[:, 1] * log_probability(-difference))


def return_loss(returns_a: Tensor, returns_b: Tensor, true_returns: Tensor) -> Tensor:
    """Returns the squared error of predicted returns, the mean over a pair's two segments ("target" in section 3.3).

    Args:
        returns_a, returns_b: (..., B) sums of predicted reward over the two segments.
        true_returns: (2, B) sums of true reward over a and over b.

    Returns:
        (..., B) losses.
    """
    return ((returns_a - true_returns[0]).square() + (returns_b - true_returns[1]).square()) / 2


def agreement(difference: Tensor, mu: Tensor) -> tuple[int, int]:
    """Returns how many answers the predicted preferences agree with, and of how many; ties do not count."""
    decisive = mu[:, 0] != mu[:, 1]
    right = (difference > 0) == (mu[:, 0] > mu[:, 1])
    return int((right & decisive).sum()), int(decisive.sum())


# A checkpoint records these settings, so that the same networks can be built again.
ARCHITECTURE = (
    *("reward_predictor_network", "reward_predictor_uses_actions", "ensemble_size"),
    *("batchnorm", "dropout", "reward_std"),
)


@dataclass(frozen=True)
class PredictorCopySpec:
    """Builds the policy's own copy of the predictor in the policy's process."""

    inputs: PredictorInputs
    config: PredictorConfig
    board: WeightsBoard
    device: torch.device = CPU

    def build(self) -> PredictorCopy:
        return PredictorCopy(RewardPredictor(self.inputs, self.config, self.device), self.board)


class MemberRewards(NamedTuple):
    """Predicted rewards of the same steps, (members, B) each."""

    raw: np.ndarray
    """From the members as they are, so that segments can be compared by their sums."""
    normalised: np.ndarray
    """On the scale that the policy learns from."""


class PredictorCopy:
    """A predictor that follows the weights on the board.

    New weights shift all rewards a little, and at a discount of 0.99 a constant shift of the rewards is a hundredfold
    shift of the values. So the copy fits its normaliser again to the steps that the policy has just seen.

    It scales rewards of pixels to zero mean and the wanted standard deviation. Of vectors it does so only once, because
    the worker scales their values (`a2c.returns.ValueUnits`); after that, the recent steps stay worth as much as
    before. Otherwise the zero, the scale and the values would change with how many bodies happen to lie down.
    """

    KEPT = ("predictor", "version", "_recent", "normaliser", "scale")

    def __init__(self, predictor: RewardPredictor, board: WeightsBoard) -> None:
        self.predictor, self.board, self.version = predictor, board, 0
        self._quick = predictor  # predicts the same, with batch norm folded if there is any
        self._recent = RecentSteps(NORMALISER_STEPS, NORMALISER_STRIDE)
        # The mean and standard deviation of each member's rewards of vectors, once fitted; a resumed run keeps them.
        self.normaliser: tuple[Tensor, Tensor] | None = None

    @property
    def trained(self) -> bool:
        """Whether weights were ever published."""
        return self.board.version > 0

    @property
    def scale(self) -> tuple[Tensor, Tensor]:
        """The mean and standard deviation by which it normalises; restored after the predictor."""
        return self._quick.mean, self._quick.std

    @scale.setter
    def scale(self, scale: tuple[Tensor, Tensor]) -> None:
        self._quick = self.predictor.folded() if self.version else self.predictor
        self._quick.mean.copy_(scale[0])
        self._quick.std.copy_(scale[1])

    @torch.inference_mode()
    def refresh(self) -> int:
        """Takes over the newest weights; returns their version, 0 if there are none yet."""
        if self.board.version > self.version:
            recent = self._recent.all() if self._recent.full else None
            before = self._quick.normalised(self._quick.member_rewards(*recent)) if recent and self.normaliser else None
            self.version = self.board.fetch(self.predictor)
            self._quick = self.predictor.folded()
            # The first fit to vectors stays; the published one is to the labelled segments, if it is one.
            labelled = self._quick.std if self.predictor.kind == "vector" and self._quick.mean.any() else None
            raw = self._quick.predict(*recent) if recent else None
            if raw is not None and tell_scale(raw, labelled, before, self.predictor.reward_std):
                self._quick.fit_normaliser(raw, like=before)
                if self.predictor.kind == "vector":
                    self.normaliser = self._quick.mean.clone(), self._quick.std.clone()
            elif self.normaliser:  # from before a resumption; the published one was fitted to other steps
                self._quick.mean.copy_(self.normaliser[0])
                self._quick.std.copy_(self.normaliser[1])
        return self.version

    def member_rewards(self, observations: np.ndarray | Tensor, actions: np.ndarray | Tensor) -> MemberRewards:
        """(B, ...), (B,) or (B, A) -> (members, B) rewards, and keeps some of the steps for the normaliser."""
        observations, actions = (to_device(x, self.predictor.device) for x in (observations, actions))
        self._recent.add(observations, actions)
        raw = self._quick.member_rewards(observations, actions)
        return MemberRewards(raw, self._quick.normalised(raw))

    def past_rewards(self, observations: Tensor, actions: Tensor) -> np.ndarray:
        """(B, ...), (B,) or (B, A) -> (members, B) normalised rewards of steps of any age; keeps none of them."""
        return self._quick.normalised(self._quick.member_rewards(observations, actions))

"""The policy's body as it computes: in bfloat16 if the device has it, and keeping what it computed if there is room."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from drlhp.networks import architectures as networks
from drlhp.networks.device import has_bf16


class ComputingBody:
    """Runs the policy's body.

    If the device has bfloat16 arithmetic, a convolutional body runs as a bfloat16 copy (twice as fast on a small
    batch and on an update), while the optimiser works on the float32 weights, which are the ones saved.

    Args:
        body: the body with the float32 weights, on the device already. This object is no module, so that the copy is
            never saved and never given to the optimiser.
    """

    def __init__(self, body: nn.Module, device: torch.device) -> None:
        self.body = body
        fast = isinstance(body, networks.NatureCNN) and has_bf16(device)
        self._fast = [copy.deepcopy(body).to(torch.bfloat16)] if fast else []
        self._kept: list[Tensor] = []  # (T, N, ...) what the body computed in each step that was kept

    @property
    def modules(self) -> list[nn.Module]:
        """The body, and its bfloat16 copy if there is one."""
        return [self.body, *self._fast]

    @property
    def _computing(self) -> nn.Module:
        return self.modules[-1]

    @property
    def keeps(self) -> bool:
        """Whether there is room for what the steps of a rollout compute."""
        return bool(self._kept)

    def keep(self, n_steps: int, n_envs: int) -> None:
        """Makes room for what the steps of a rollout compute, if this kind of body can reuse it."""
        if isinstance(self._computing, networks.NatureCNN):
            self._kept = self._computing.room(n_steps, n_envs)

    def features(self, observations: Tensor, step: int | None = None) -> Tensor:
        """Observations (B, ...) -> features (B, F) float32.

        Args:
            step: keep what is computed as that of this step of the rollout, if there is room.
        """
        kept = () if step is None or not self._kept else ([room[step] for room in self._kept],)
        features: Tensor = self._computing(observations, *kept).float()
        return features

    def kept_features(self) -> Tensor:
        """Returns the features (T * N, F) of all steps that were kept, with gradients."""
        assert isinstance(self._computing, networks.NatureCNN)
        return self._computing.recalled([room.flatten(0, 1) for room in self._kept]).float()

    def computing_weights(self) -> dict[int, Tensor]:
        """Returns the weights that compute in place of float32 ones, by the `id` of those."""
        return {
            id(weight): half
            for fast in self._fast
            for weight, half in zip(self.body.parameters(), fast.parameters(), strict=True)
        }

    @torch.no_grad()
    def refresh(self, *, buffers: bool = False) -> None:
        """Copies the float32 weights, and perhaps the buffers, to the bfloat16 copy."""
        for fast in self._fast:
            torch._foreach_copy_(list(fast.parameters()), list(self.body.parameters()))
            if buffers:
                torch._foreach_copy_(list(fast.buffers()), list(self.body.buffers()))

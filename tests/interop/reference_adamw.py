"""Transcription of google-research/bert's `AdamWeightDecayOptimizer` and schedule to PyTorch.

Source: google-research/bert `optimization.py`, `create_optimizer` and `apply_gradients`.
"""

import re

import torch

BETA1, BETA2, EPSILON, DECAY, CLIP = 0.9, 0.999, 1e-6, 0.01, 1.0
EXCLUDED = ("LayerNorm", "layer_norm", "bias")


class ReferenceAdamW:
    """Clipping by global norm, Adam without bias correction, weight decay, and a schedule.

    The learning rate has a linear warm-up and decays linearly to 0.
    """

    def __init__(
        self, model: torch.nn.Module, *, peak: float, train_steps: int, warmup_steps: int
    ) -> None:
        self.params = dict(model.named_parameters())
        self.m = {name: torch.zeros_like(param) for name, param in self.params.items()}
        self.v = {name: torch.zeros_like(param) for name, param in self.params.items()}
        self.peak, self.train_steps, self.warmup_steps = peak, train_steps, warmup_steps
        self.global_step = 0
        self.norms: list[float] = []  # gradient norms of every step, before clipping

    @property
    def rate(self) -> float:
        """Learning rate: warm-up, then `polynomial_decay` to 0 with power 1."""
        done = min(self.global_step, self.train_steps)
        if self.global_step < self.warmup_steps:
            return self.peak * self.global_step / self.warmup_steps
        return self.peak * (1.0 - done / self.train_steps)

    @torch.no_grad()
    def step(self) -> None:
        """Takes one step with the gradients of `backward`, and clears them."""
        grads = {name: gradient(param) for name, param in self.params.items()}
        norm = torch.stack([grad.double().norm() for grad in grads.values()]).norm()
        self.norms.append(float(norm))
        factor = float(CLIP / torch.clamp(norm, min=CLIP))  # tf.clip_by_global_norm
        for name, param in self.params.items():
            grad = grads[name] * factor
            self.m[name] = BETA1 * self.m[name] + (1.0 - BETA1) * grad
            self.v[name] = BETA2 * self.v[name] + (1.0 - BETA2) * grad**2
            update = self.m[name] / (torch.sqrt(self.v[name]) + EPSILON)
            if not any(re.search(pattern, name) for pattern in EXCLUDED):
                update += DECAY * param
            param -= self.rate * update
            param.grad = None
        self.global_step += 1


def gradient(param: torch.nn.Parameter) -> torch.Tensor:
    """Returns a parameter's gradient, and asserts that it has one."""
    assert param.grad is not None
    return param.grad

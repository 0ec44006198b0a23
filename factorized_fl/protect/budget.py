"""The privacy budget of each client: its noise, the steps that it has taken, and epsilon spent so far."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from factorized_fl.core.views import Tensors
from factorized_fl.protect.accountant import epsilon_spent, most_steps, noise_of_release, noise_of_steps
from factorized_fl.protect.draws import Draws

RELEASE_SHARE = 0.25  # share of epsilon for the statistics of images


@dataclass(frozen=True)
class Plan:
    """The demands of one client's training on its budget."""

    rate: float  # probability with which a step samples an example
    steps: int  # gradients in all rounds in which the client is sampled
    seat: int  # its number in random draws


class Budget:
    """The budgets of some clients. What they have spent is part of a checkpoint.

    Args:
        epsilon: the budget of each client over the whole run.
        delta: the probability with which epsilon may not hold.
        clip: the largest norm of an example's gradient.
        plans: one for each client.
        released: whether the clients publish noisy statistics of their images before they train.
        secret: from which sampling and noise are drawn; a party that knows it can subtract the noise.
    """

    def __init__(
        self, epsilon: float, delta: float, clip: float, plans: Sequence[Plan], *, released: bool, secret: int
    ) -> None:
        self.epsilon, self.delta, self.clip, self.plans, self._secret = epsilon, delta, clip, plans, secret
        self.release = release_noise(epsilon, delta) if released else 0.0
        noise = [noise_of_steps(epsilon, delta, plan.rate, plan.steps, self.release) for plan in plans]
        self.noise = torch.tensor(noise, dtype=torch.float64)
        self.taken = torch.zeros(len(plans), dtype=torch.int64)  # steps, including those of training that was abandoned
        self.remember: Callable[[], None] = lambda: None  # called before steps are taken
        self._reserved = dict[int, int]()

    def spent(self, k: int) -> float:
        """Epsilon of everything that client k has done so far; never more than the budget."""
        noise, steps = float(self.noise[k]), int(self.taken[k])
        return epsilon_spent(self.delta, noise, self.plans[k].rate, steps, self.release, self.epsilon)

    def reserve(self, k: int, steps: int) -> int:
        """Counts the steps that client k is about to take, at most as many as its budget permits; returns how many."""
        plan, taken, noise = self.plans[k], int(self.taken[k]), float(self.noise[k])
        after = taken + steps
        if epsilon_spent(self.delta, noise, plan.rate, after, self.release, self.epsilon) > self.epsilon:
            after = max(taken, most_steps(self.epsilon, self.delta, noise, plan.rate, self.release, after))
        self.taken[k], self._reserved[k] = after, after - taken
        self.remember()
        return after - taken

    def draws(self, k: int) -> Draws | None:
        """The random numbers of client k's next step; None if no further step was reserved.

        Steps are numbered over the whole run, and no number is used twice: the same noise on two gradients would reveal
        their difference.
        """
        if not self._reserved.get(k):
            return None
        self._reserved[k] -= 1
        return Draws(self._secret, "step", self.plans[k].seat, int(self.taken[k]) - self._reserved[k])

    @property
    def tensors(self) -> Tensors:
        """Return the tensors for a checkpoint."""
        return {"privacy/taken": self.taken, "privacy/noise": self.noise}

    def load(self, tensors: Tensors) -> None:
        """Restores a checkpoint."""
        for name, tensor in self.tensors.items():
            tensor.copy_(tensors[name])


def release_noise(epsilon: float, delta: float) -> float:
    """The noise of the statistics of images, in units of their sensitivity: that of a quarter of epsilon."""
    return noise_of_release(RELEASE_SHARE * epsilon, delta)

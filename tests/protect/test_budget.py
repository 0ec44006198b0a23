"""What differentially private training costs: published values, budgets, and secret random numbers."""

import math

import pytest
import torch

from factorized_fl.protect.accountant import (
    epsilon_spent,
    gaussian_delta,
    most_steps,
    noise_of_release,
    noise_of_steps,
)
from factorized_fl.protect.budget import RELEASE_SHARE, Budget, Plan
from factorized_fl.protect.draws import Draws


def test_epsilon_equals_the_value_that_koskela_and_others_publish() -> None:
    """Their Fourier accountant (AISTATS 2020; github.com/DPBayes/PLD-Accountant, its simple usage example).

    It gives delta 4.243484e-6 at epsilon 1 for 10,000 steps with noise 4 and rate 0.01; later copies of that file print
    1,000 steps beside the same delta.
    """
    found = epsilon_spent(4.243484012034273e-06, 4.0, 0.01, 10_000, 0.0, 0.8)
    assert found == pytest.approx(1.0, rel=0.01)


def test_epsilon_equals_the_value_in_the_tests_of_googles_accountant() -> None:
    """github.com/google/differential-privacy, pld_privacy_accountant_test: delta 0.15594 at epsilon 1."""
    assert epsilon_spent(0.15594, 0.5, 0.2, 3, 0.0, 0.5) == pytest.approx(1.0, rel=0.01)


def test_a_release_has_the_noise_of_the_analytic_gaussian_mechanism() -> None:
    """For epsilon 1 and delta 1e-5 the noise is 3.7306 (Balle and Wang, 2018), and the bound is met exactly."""
    assert noise_of_release(1.0, 1e-5) == pytest.approx(3.7306, abs=2e-3)
    noise = noise_of_release(0.75, 1e-5)
    assert gaussian_delta(noise, 0.75) <= 1e-5 < gaussian_delta(0.999 * noise, 0.75)


def test_steps_on_all_examples_and_a_release_add_up_as_gaussians_do() -> None:
    """n Gaussians of noise s and one of noise r have exactly the privacy of one of 1 / sqrt(n / s^2 + 1 / r^2)."""
    together = 1 / math.sqrt(5 / 2.0**2 + 1 / 3.0**2)
    found = epsilon_spent(1e-5, 2.0, 1.0, 5, 3.0, 4.0)
    assert gaussian_delta(together, found) <= 1e-5 <= gaussian_delta(together, found - 0.1)


def test_noise_keeps_the_budget_and_uses_it() -> None:
    noise = noise_of_steps(3.0, 1e-5, 0.25, 8, 0.0)
    assert 2.9 <= epsilon_spent(1e-5, noise, 0.25, 8, 0.0, 3.0) <= 3.0
    assert noise_of_steps(3.0, 1e-5, 0.25, 8, 4.851) > noise  # a release leaves less for steps
    most = most_steps(3.0, 1e-5, noise, 0.25, 0.0, 16)
    assert 8 <= most < 16
    assert epsilon_spent(1e-5, noise, 0.25, most + 1, 0.0, 3.0) > 3.0


def budget(**changes: object) -> Budget:
    given = {"released": False, "secret": 7, **changes}
    return Budget(3.0, 1e-5, 1.0, [Plan(0.25, 8, 0), Plan(0.25, 8, 1)], **given)  # type: ignore[arg-type]


def test_steps_are_counted_before_they_are_taken_and_end_at_the_budget() -> None:
    kept, seen = budget(), []
    kept.remember = lambda: seen.append(int(kept.taken[0]))
    assert kept.spent(0) == 0
    assert kept.draws(0) is None
    assert kept.reserve(0, 4) == 4
    assert seen == [4]
    assert kept.spent(0) == epsilon_spent(1e-5, float(kept.noise[0]), 0.25, 4, 0.0, 3.0)
    assert kept.spent(1) == 0
    taken = 4
    while more := kept.reserve(0, 4):
        taken += more
    assert taken == most_steps(3.0, 1e-5, float(kept.noise[0]), 0.25, 0.0, 100)
    assert kept.spent(0) <= 3.0
    again = budget()
    again.load({name: tensor.clone() for name, tensor in kept.tensors.items()})
    assert again.spent(0) == kept.spent(0)
    assert again.reserve(0, 1) == 0


def test_no_two_steps_share_random_numbers_also_if_training_is_given_up() -> None:
    kept, numbers = budget(), []
    for k, steps, used in ((0, 2, 2), (0, 2, 1), (0, 2, 2), (1, 1, 1)):
        kept.reserve(k, steps)
        for _ in range(used):
            draws = kept.draws(k)
            assert draws is not None
            numbers.append(draws.normal("noise", [1]).item())
    assert len(set(numbers)) == 6
    assert len({budget(secret=s).reserve(0, 1) for s in (1, 2)}) == 1


def test_statistics_of_images_are_paid_from_the_same_budget() -> None:
    kept = budget(released=True)
    assert kept.release == noise_of_release(RELEASE_SHARE * 3.0, 1e-5)
    assert kept.spent(0) == pytest.approx(0.75, abs=1e-3)
    assert float(kept.noise[0]) > float(budget().noise[0])


def test_draws_are_those_of_their_distributions_and_depend_on_secret_path_and_name() -> None:
    draws = Draws(1, "step", 3, 4)
    uniform, normal = draws.uniform("sample", 20_000), draws.normal("noise", [100, 200])
    assert float(uniform.min()) > 0
    assert float(uniform.max()) < 1
    assert float((uniform < 0.25).double().mean()) == pytest.approx(0.25, abs=0.01)
    assert float(normal.mean()) == pytest.approx(0, abs=0.02)
    assert float(normal.std()) == pytest.approx(1, abs=0.02)
    assert torch.equal(uniform, Draws(1, "step", 3, 4).uniform("sample", 20_000))
    others = [Draws(2, "step", 3, 4).uniform("sample", 5), Draws(1, "step", 3, 5).uniform("sample", 5)]
    assert not any(torch.equal(uniform[:5], other) for other in (*others, draws.uniform("torch", 5)))


@pytest.mark.parametrize(("rate", "steps"), [(0.2, 4), (1.0, 1)])
def test_the_search_for_noise_ends_for_few_steps_and_rare_samples(rate: float, steps: int) -> None:
    """The accountant refuses some meshes; finer ones are tried then, and the search cannot go round in circles."""
    noise = noise_of_steps(3.0, 1e-5, rate, steps, 4.851)
    assert 2.8 <= epsilon_spent(1e-5, noise, rate, steps, 4.851, 3.0) <= 3.0

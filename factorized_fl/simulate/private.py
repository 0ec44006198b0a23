"""The privacy budgets of a federation's clients, and the noisy statistics of their images."""

from collections import Counter

from factorized_fl.config import Config
from factorized_fl.core.server import Sampling
from factorized_fl.data.scenarios import Scenario
from factorized_fl.engine import Work
from factorized_fl.engine.private import refuse_shared_statistics
from factorized_fl.protect.accountant import require_accountant
from factorized_fl.protect.budget import Budget, Plan


def budget_of(work: Work, secret: int) -> Budget | None:
    """The budgets of all clients, None without differential privacy; raises UserError if the network cannot serve.

    Noise is computed for the rounds in which a client is sampled, because the seed of sampling is public. A site
    holds one client and does not know how many sites will take part, so it computes with all rounds.
    """
    config, scenario = work.config, work.scenario
    if not config.privacy_epsilon:
        return None
    require_accountant()
    for model in work.models.values():
        refuse_shared_statistics(model, config.model)
    rounds = _rounds(config, scenario)
    plans = []
    for k, client in enumerate(scenario.clients):
        size = min(config.batch_size, len(client.train))
        steps = max(1, rounds[k]) * work.step_count(k) * work.method.gradients_per_step
        plans.append(Plan(size / len(client.train), steps, client.draws_as(k)))
    return Budget(
        config.privacy_epsilon,
        config.privacy_delta,
        config.privacy_clip,
        plans,
        released=work.method.looks_at_images,
        secret=secret,
    )


def _rounds(config: Config, scenario: Scenario) -> Counter[int]:
    """In how many rounds each client is sampled."""
    count = len(scenario.clients)
    if config.fraction == 1 or any(client.seat is not None for client in scenario.clients):
        return Counter(dict.fromkeys(range(count), config.rounds))
    sampling, rounds = Sampling(config.seed, count, config.fraction, config.dropout), Counter[int]()
    for round_number in range(1, config.rounds + 1):
        rounds.update(sampling.draw(round_number)[0])
    return rounds


def reserve(work: Work, ks: list[int]) -> None:
    """Counts the gradients that some clients take in the next round in their budgets; before they train."""
    if work.budget is not None:
        for k in ks:
            work.budget.reserve(k, work.step_count(k) * work.method.gradients_per_step)

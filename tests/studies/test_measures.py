import torch

from studies.paper.measures import factor_summary, mixing_summary, time_and_memory

DOMAINS = ["a", "a", "b", "b"]


def trace_of(u: list[list[float]], v: list[list[float]], mu: list[list[float]]) -> dict[str, torch.Tensor]:
    named = {"cosine.u": u, "cosine.v": v, "mu": mu}
    return {name: torch.tensor(rows, dtype=torch.float64) for name, rows in named.items()}


def test_factors_by_hand() -> None:
    """v is like the own domain, u like the other domain; a client's mu has 10 and 2 or 10 and 4 numbers."""
    u = [[1, 0.1, 0.7, 0.6], [0.1, 1, 0.6, 0.7], [0.7, 0.6, 1, 0.1], [0.6, 0.7, 0.1, 1]]
    v = [[1, 0.9, 0.2, 0.3], [0.9, 1, 0.4, 0.5], [0.2, 0.4, 1, 0.8], [0.3, 0.5, 0.8, 1.0000004]]
    sizes = {"u": [[4, 5]] * 4, "v": [[3, 2], [3, 2], [3, 4], [3, 4]], "mu": [[10, 2], [10, 2], [10, 4], [10, 4]]}
    first = trace_of(u, v, [[0.5, 1.0], [0.4, 0.5], [0.3, 0.25], [0.1, 0.75]])
    last = trace_of(v, u, [[0.0, 0.0]] * 4)
    found = factor_summary({1: first, 2: last}, sizes, DOMAINS)
    assert found["v"]["same"] == [0.85, 0.1]
    assert found["v"]["other"] == [0.35, 0.65]
    assert found["v"]["found"] == [1.0, 0.0]
    assert found["u"]["found"] == [0.0, 1.0]
    assert found["v"]["matrices"] == {"1": [*v[:3], [0.3, 0.5, 0.8, 1.0]], "2": u}
    assert found["numbers"] == {"u": 9, "v": 5, "mu": 12}
    assert found["mu_kept"] == [round((7 + 5 + 4 + 4) / 4), 0]


def test_a_model_without_mu_has_no_entries_of_it() -> None:
    tensors = trace_of([[1, 0.5]] * 2, [[1, 0.5]] * 2, [])
    del tensors["mu"]
    found = factor_summary({1: tensors}, {"u": [[4]] * 2, "v": [[3]] * 2}, ["a", "a"])
    assert found == {"u": {"same": [0.75]}, "v": {"same": [0.75]}, "numbers": {"u": 4, "v": 3, "mu": 0}}


def test_shares_give_back_the_counts_they_came_from() -> None:
    """Also of the largest layer of a ResNet-9, in whole numbers."""
    counts = torch.arange(589_000, 589_824, dtype=torch.float64)
    traces = {n: trace_of([[1.0]], [[1.0]], [[count / 589_824]]) for n, count in enumerate(counts.tolist(), 1)}
    found = factor_summary(traces, {"u": [[9]], "v": [[65_536]], "mu": [[589_824]]}, ["a"])
    assert found["mu_kept"] == counts.long().tolist()


def test_peak_memory_is_the_largest_of_all_rounds_where_there_is_one() -> None:
    """A run that was resumed begins to count from 0."""
    lines = [{"round": 1, "seconds": 1.0, "peak_gib": 5.5}, {"round": 2, "seconds": 1.0, "peak_gib": 4.25}]
    assert time_and_memory(lines, 0.0)["peak_gib"] == 5.5
    assert time_and_memory([{"round": 1, "seconds": 1.0}, lines[1]], 0.0)["peak_gib"] == 4.25
    assert "peak_gib" not in time_and_memory([{"round": 1, "seconds": 1.0}], 0.0)


def test_an_ordinary_round_is_neither_the_one_that_compiles_nor_one_after_a_pause() -> None:
    lines = [{"round": k, "seconds": seconds} for k, seconds in enumerate([20.0, 1.5, 1.25, 9.0, 1.25], start=1)]
    assert time_and_memory(lines, 2.0) == {"seconds": {"start": 2.0, "rounds": 33.0, "ordinary_round": 1.5}}


def test_of_methods_that_go_back_the_share_of_clients_is_kept() -> None:
    rounds = [{"matrix": torch.eye(4), "revert": torch.tensor(flags)} for flags in ([True] * 4, [False, True] * 2)]
    assert mixing_summary(rounds, ["all"] * 4)["reverted"] == [1.0, 0.5]
    assert "reverted" not in mixing_summary([{"matrix": torch.eye(4)}], ["all"] * 4)

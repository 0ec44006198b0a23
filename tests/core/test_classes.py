import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from factorized_fl.core.classes import (
    CONFIDENCE,
    PEERS,
    ROW,
    TAKEN,
    ClassRows,
    ClassSharing,
    Matches,
    TrueMatches,
    aggregate_rows,
    class_tensors,
    common_labels,
)
from factorized_fl.core.mixing import Dense
from factorized_fl.core.roles import Role

LABELS = torch.tensor([[0, 1, -1], [1, 0, 2], [-1, 1, -1]])
WEIGHTS = torch.tensor([[0.5, 0.25, 0.25], [0.2, 0.6, 0.2], [0.0, 0.0, 1.0]], dtype=torch.float64)


def test_rows_are_the_mean_over_clients_that_have_the_class() -> None:
    stacked = torch.arange(18.0).view(3, 3, 2)
    mixed, taken = aggregate_rows(stacked, LABELS, Dense(WEIGHTS), [0, 1, 2])
    first = (0.5 * stacked[0, 0] + 0.25 * stacked[1, 1]) / 0.75
    second = 0.5 * stacked[0, 1] + 0.25 * stacked[1, 0] + 0.25 * stacked[2, 1]
    assert torch.allclose(mixed[0], torch.stack([first, second, torch.zeros(2)]))
    assert torch.allclose(taken[0], torch.tensor([1 / 3, 0.5, 0.0], dtype=torch.float64))
    assert torch.allclose(taken[1], torch.tensor([0.4, 0.25, 0.0], dtype=torch.float64))  # its third class is alone
    assert not taken[2].any()  # this client gives no other any weight
    assert not mixed[2].any()


def test_rows_with_too_few_effective_peers_stay_at_home() -> None:
    """The first class of client 0 has one peer, the second has two equal ones."""
    mixed, taken = aggregate_rows(torch.ones(3, 3, 2), LABELS, Dense(WEIGHTS), [0], min_peers=2.0)
    assert taken[0].tolist() == [0.0, 0.5, 0.0]
    assert mixed[0, :, 0].tolist() == [0.0, 1.0, 0.0]


def test_a_diverged_client_spoils_only_classes_that_it_has() -> None:
    stacked = torch.ones(3, 3, 2)
    stacked[2] = torch.nan
    mixed, _ = aggregate_rows(stacked, LABELS, Dense(WEIGHTS), [0])
    assert torch.equal(mixed[0, 0], torch.ones(2))
    assert mixed[0, 1].isnan().all()


@settings(max_examples=30, deadline=None)
@given(st.randoms(use_true_random=False), st.permutations(range(3)), st.permutations(range(3)))
def test_renumbering_clients_or_classes_renumbers_the_result(random, clients, classes) -> None:
    stacked = torch.tensor([random.random() for _ in range(18)], dtype=torch.float64).view(3, 3, 2)
    mixed, taken = aggregate_rows(stacked, LABELS, Dense(WEIGHTS), [0, 1, 2])
    numbers = torch.tensor(clients)[:, None], torch.tensor(classes)
    weights = Dense(WEIGHTS[clients][:, clients])
    other, share = aggregate_rows(stacked[numbers], LABELS[numbers], weights, [0, 1, 2])
    assert torch.allclose(other, mixed[numbers])
    assert torch.allclose(share, taken[numbers])


def test_labels_count_if_two_matchings_agree_on_them() -> None:
    before, now = torch.tensor([[4, 7], [4, -1], [7, 4]]), torch.tensor([[0, 1], [0, 1], [1, 0]])
    # Class 0 of clients 0 and 1 and class 1 of client 2 stayed together; class 1 of client 1 had no match before.
    assert common_labels(before, now).tolist() == [[0, 1], [0, -1], [1, 0]]
    assert common_labels(before, torch.full_like(now, -1)).tolist() == [[-1, -1]] * 3


class Alternating:
    """Another result each time."""

    def __init__(self, *labels: list[list[int]]) -> None:
        self.labels = [torch.tensor(each) for each in labels]

    def match(self, extra, received) -> Matches:
        labels = self.labels.pop(0)
        return Matches(labels, torch.where(labels >= 0, 0.9, 0.0).double())


def sharing(matcher, least: float = 0.5) -> ClassSharing:
    return ClassSharing(ClassRows(("head.weight",), 2), matcher, {}, least, 2)


def test_matches_are_used_after_two_rounds_and_again_from_the_same_beginning_within_a_round() -> None:
    everyone = torch.ones(2, dtype=torch.bool)
    one, two = [[0, 1], [1, 0]], [[0, 1], [0, 1]]
    found = sharing(Alternating(one, one, one, two, two, two))
    seen = []
    for round_number in (2, 3, 3, 4, 4, 5):
        found.match(round_number, {}, everyone)
        seen.append(found.matches.labels.tolist())
    nothing = [[-1, -1], [-1, -1]]
    alone = seen[3]  # no class has the same partner as before
    assert seen[:3] == [nothing, one, one]
    assert len({label for row in alone for label in row}) == 4
    assert seen[4:] == [alone, two]


def test_unsure_matches_and_absent_clients_are_left_out() -> None:
    everyone = torch.ones(2, dtype=torch.bool)
    unsure = sharing(Alternating([[0, 1], [1, 0]], [[0, 1], [1, 0]]), least=0.95)
    for round_number in (2, 3):
        unsure.match(round_number, {}, everyone)
    assert (unsure.matches.labels == -1).all()
    known = sharing(TrueMatches(torch.tensor([[0, 1], [1, 0]])))
    known.match(2, {}, torch.tensor([True, False]))
    assert known.matches.labels.tolist() == [[0, 1], [-1, -1]]


def test_a_download_names_the_matched_classes_and_replaces_only_their_rows() -> None:
    found = sharing(TrueMatches(torch.tensor([[0, -1], [1, 0]])))
    found.match(2, {}, torch.ones(2, dtype=torch.bool))
    rows = torch.tensor([[[1.0], [2.0]], [[3.0], [5.0]]])
    given = found.downloads({ROW + "head.weight": rows}, {"head.weight": Dense(torch.full((2, 2), 0.5))}, [0, 1], [])
    assert given[CONFIDENCE].tolist() == [[1, 0], [0, 1]]
    assert given[TAKEN].tolist() == [[0.5, 0], [0, 0.5]]
    assert given[PEERS].tolist() == [[[0, 2], [0, 0]], [[0, 0], [1, 0]]]
    own = {"head.weight": torch.tensor([[1.0], [2.0]])}
    found.rows.replace(own, {name: tensor[0] for name, tensor in given.items()})
    assert own["head.weight"].tolist() == [[3.0], [2.0]]
    back = found.downloads({ROW + "head.weight": rows}, {"head.weight": Dense(torch.full((2, 2), 0.5))}, [0, 1], [0])
    assert not back[CONFIDENCE][0].any()
    assert back[CONFIDENCE][1].any()


def test_rows_belong_to_classes_in_the_last_layer_of_the_classifier() -> None:
    roles = {
        "head.0.weight": Role("body", True),
        "head.2.u": Role("u", True),
        "head.2.v": Role("v", True),
        "head.2.w": Role("w1", True),
        "head.2.bias": Role("bias", True),
        "conv.weight": Role("body", False),
    }
    shapes = {name: torch.Size([5, 3]) for name in roles} | {"head.2.u": torch.Size([1, 3])}
    assert class_tensors(roles, shapes, "head.2", 5) == ["head.2.v", "head.2.bias"]


def test_a_class_sharing_goes_back_to_its_checkpoint() -> None:
    everyone = torch.ones(2, dtype=torch.bool)
    one = [[0, 1], [1, 0]]
    found = sharing(Alternating(one, one))
    found.match(2, {}, everyone)
    saved = {name: tensor.clone() for name, tensor in found.tensors.items()}
    again = sharing(Alternating(one))
    again.load(saved)
    again.match(3, {}, everyone)
    assert again.matches.labels.tolist() == one

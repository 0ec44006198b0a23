import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from factorized_fl.core.errors import UserError
from factorized_fl.data.images import ImageSet
from factorized_fl.data.scenarios import (
    build_scenario,
    deal_evenly,
    divide,
    hold_out,
    permutation,
    score_validation,
    scramble,
)

NORMAL = ((0.5,), (0.25,))


def grey(name: str, count: int, classes: int) -> ImageSet:
    """Return distinguishable images: image i is filled with i mod 256."""
    images = torch.arange(count).remainder(256).to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 8, 8).contiguous()
    return ImageSet(name, images, torch.arange(count) % classes, tuple(f"{name} {c}" for c in range(classes)))


def tables(paper: str) -> list[list[list[int | None]]]:
    """The rows of the paper's two permutation tables: labels of clients 1 to 20, None where there is a dash."""
    found = []
    for label in ("tbl:dataset_1", "tbl:dataset_2"):
        body = paper[: paper.index(f"\\label{{{label}}}")]
        body = body[body.rindex("\\begin{tabular}") :]
        rows = []
        for line in body.splitlines():
            cells = [cell.strip() for cell in re.sub(r"\\\\.*", "", line).split("&")]
            if len(cells) < 22 or not cells[2].isdigit():
                continue
            # Some rows of the second table lack their last dash.
            entries = [int(cell) if cell.isdigit() else None for cell in cells[3:]]
            rows.append(entries + [None] * (20 - len(entries)))
        found.append(rows)
    return found


def test_permutations_are_those_of_both_tables_of_the_paper(paper: str) -> None:
    label_table, domain_table = tables(paper)
    assert len(label_table) == 20  # ten classes of CIFAR-10, ten of SVHN
    assert len(domain_table) == 50
    checked = 0
    for rows in (label_table, domain_table):
        for index, row in enumerate(rows):
            for client, label in enumerate(row):
                if label is not None:
                    assert permutation(10, client)[index % 10] == label
                    checked += 1
    assert checked == 20 * 20 + 50 * 4


@pytest.mark.parametrize(("count", "sizes"), [(60_000, (48_000, 6_000, 6_000)), (99_289, (79_431, 9_929, 9_929))])
def test_split_sizes_are_the_papers(count: int, sizes: tuple[int, int, int]) -> None:
    scenario = build_scenario([grey("set", count, 10)], NORMAL, clients=20)
    client = scenario.clients[0]
    assert sum(len(c.train) for c in scenario.clients) == sizes[0]
    assert (len(client.test), len(client.validation)) == sizes[1:]
    if count == 60_000:
        assert {len(c.train) for c in scenario.clients} == {2_400}


def test_domain_sizes_are_the_papers() -> None:
    scenario = build_scenario([grey(name, 6_000, 10) for name in "abcde"], NORMAL, clients=20, permuted=True)
    assert [len(c.train) for c in scenario.clients] == [1_200] * 20
    assert [(len(c.test), len(c.validation)) for c in scenario.clients] == [(600, 600)] * 20
    assert [c.domain for c in scenario.clients] == [name for name in "abcde" for _ in range(4)]
    assert not scenario.labels_agree


@settings(max_examples=60, deadline=None)
@given(
    counts=st.lists(st.integers(1, 30), min_size=1, max_size=5),
    clients=st.integers(1, 9),
    alpha=st.sampled_from([None, 1e-300, 0.01, 0.5, 100.0]),
    seed=st.integers(0, 1000),
)
def test_parts_are_disjoint_and_complete(counts: list[int], clients: int, alpha: float | None, seed: int) -> None:
    labels = np.repeat(np.arange(len(counts)), counts)
    if len(labels) < 2 * clients:
        return
    rng = np.random.default_rng(seed)
    parts = deal_evenly(labels, clients, rng) if alpha is None else divide(labels, clients, alpha, rng)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))
    assert min(len(part) for part in parts) >= 2
    if alpha is None:
        by_class = np.array([np.bincount(labels[part], minlength=len(counts)) for part in parts])
        assert (by_class.max(0) - by_class.min(0) <= 1).all()
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_train_validation_and_test_never_overlap_and_cover_everything() -> None:
    scenario = build_scenario([grey("a", 100, 3), grey("b", 60, 4)], NORMAL, clients=5, partition="dirichlet")
    for domain, expected in (("a", range(100)), ("b", range(100, 160))):
        members = [c for c in scenario.clients if c.domain == domain]
        held = torch.cat([c.train for c in members] + [members[0].validation, members[0].test]).tolist()
        assert sorted(held) == list(expected)


def test_labelling_renames_classes_and_keeps_their_names() -> None:
    scenario = build_scenario([grey("x", 90, 10)], NORMAL, clients=2, permuted=True)
    client = scenario.clients[1]
    assert client.labelling.tolist() == permutation(10, 1)
    for original in range(10):
        assert client.classes[client.labelling[original]] == f"x {original}"


def test_same_seed_same_scenario_other_seed_other_scenario() -> None:
    first, again, other = (
        build_scenario([grey("x", 200, 5)], NORMAL, clients=4, partition="dirichlet", seed=seed) for seed in (7, 7, 8)
    )
    assert all(torch.equal(a.train, b.train) for a, b in zip(first.clients, again.clients, strict=True))
    assert not all(torch.equal(a.train, b.train) for a, b in zip(first.clients, other.clients, strict=True))


def test_scrambled_clients_keep_their_images_and_draw_new_labels() -> None:
    plain = build_scenario([grey("a", 200, 4)], NORMAL, clients=3)
    drawn = scramble(plain, 1, seed=1)
    last, before = drawn.clients[2], plain.clients[2]
    assert drawn.clients[:2] == plain.clients[:2]
    assert torch.equal(drawn.images[last.train], plain.images[before.train])
    assert torch.equal(drawn.images[: len(plain.images)], plain.images)
    assert torch.equal(drawn.labels[: len(plain.labels)], plain.labels)
    assert torch.equal(last.test, before.test)
    same = (drawn.labels[last.train] == plain.labels[before.train]).float().mean()
    assert 0.05 < same < 0.5
    assert torch.equal(scramble(plain, 1, seed=1).labels, drawn.labels)
    assert not torch.equal(scramble(plain, 1, seed=2).labels, drawn.labels)


def test_a_client_of_one_image_is_refused() -> None:
    with pytest.raises(UserError, match="images_per_client is 1, but each needs at least 2"):
        build_scenario([grey("a", 100, 2)], NORMAL, clients=2, images_per_client=1)


def test_clients_per_domain_and_images_per_client() -> None:
    scenario = build_scenario(
        [grey("a", 100, 2), grey("b", 100, 2)], NORMAL, clients=4, clients_per_domain=(1, 3), images_per_client=9
    )
    assert [c.domain for c in scenario.clients] == ["a", "b", "b", "b"]
    assert [len(c.train) for c in scenario.clients] == [9] * 4


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"clients": 50}, "too many"),
        ({"clients": 1}, "each domain needs at least one client"),
        ({"clients": 4, "clients_per_domain": (1, 2)}, "add up"),
        ({"clients": 4, "clients_per_domain": (4,)}, "must name 2 domains"),
    ],
)
def test_impossible_scenarios_are_refused(arguments: dict, words: str) -> None:
    with pytest.raises(UserError, match=words):
        build_scenario([grey("a", 40, 2), grey("b", 40, 2)], NORMAL, **arguments)


def test_paper_presets_have_the_papers_sizes_on_the_real_data(shared_data) -> None:
    from factorized_fl.api import configure
    from factorized_fl.simulate.scenario import build_scenario_of

    scenario = build_scenario_of(configure("cifar100-domains"), shared_data)
    assert [len(c.train) for c in scenario.clients] == [1_200] * 20
    assert {(len(c.test), len(c.validation)) for c in scenario.clients} == {(600, 600)}
    assert scenario.clients[0].classes[2] == "bed"  # the paper's table: client 1 calls Bed 2
    assert scenario.clients[19].classes[3] == "wolf"


def test_nothing_is_learned_from_one_class_nor_scored_without_images() -> None:
    one = ImageSet("one", torch.zeros(40, 1, 4, 4, dtype=torch.uint8), torch.zeros(40, dtype=torch.int64), ("a",))
    with pytest.raises(UserError, match="'one' has only one class"):
        build_scenario([one], ((0.5,), (0.5,)), clients=2)
    labels = torch.arange(40) % 2
    split = replace(one, labels=labels, classes=("a", "b"), split=torch.tensor([0, 2] * 20, dtype=torch.uint8))
    with pytest.raises(UserError, match="client 1 has no validation images to be scored on"):
        score_validation(build_scenario([split], ((0.5,), (0.5,)), clients=2))


def test_a_client_with_held_out_images_trains_on_two_or_more() -> None:
    for count, kept in ((12, 2), (20, 4)):
        scenario = build_scenario([grey("a", count, 2)], NORMAL, clients=1, train_share=count // 4 / count)
        held = hold_out(scenario, 0.2, seed=1).clients[0]
        assert (len(held.train), len(held.holdout)) == (kept, 1)
    scenario = build_scenario([grey("a", 8, 2)], NORMAL, clients=1, train_share=0.25)
    with pytest.raises(UserError, match="2 training images, too few to hold one out: every client needs at least 3"):
        hold_out(scenario, 0.2, seed=1)


def test_domains_of_different_sizes_are_refused() -> None:
    small, large = grey("small", 60, 3), grey("large", 60, 3)
    large = replace(large, images=large.images.repeat(1, 1, 2, 2))
    with pytest.raises(UserError, match="'small' 8 x 8 and those of 'large' 16 x 16 pixels: set image_size"):
        build_scenario([small, large], NORMAL, clients=2)


def test_test_images_limits_what_is_scored_and_leaves_training_alone() -> None:
    images = grey("many", 200, 2)
    usual, few = (build_scenario([images], NORMAL, clients=2, test_images=count) for count in (0, 7))
    for whole, part in zip(usual.clients, few.clients, strict=True):
        assert torch.equal(whole.train, part.train)
        assert (len(part.test), len(part.validation)) == (7, 7)
        assert set(part.test.tolist()) <= set(whole.test.tolist())
        assert set(part.validation.tolist()) <= set(whole.validation.tolist())
    assert torch.equal(few.clients[0].test, few.clients[1].test)  # clients of one domain are tested on the same images
    more = build_scenario([images], NORMAL, clients=2, test_images=1000)
    assert torch.equal(more.clients[0].test, usual.clients[0].test)

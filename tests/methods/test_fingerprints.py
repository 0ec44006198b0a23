"""Fingerprints of images: their values by hand, and how they compare clients of the same and of different domains."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from factorized_fl.core.ledger import measured
from factorized_fl.core.mixing import dense
from factorized_fl.methods.fingerprints import apart, blur, describe_images, first_layer, likeness, trust
from factorized_fl.nn import build_model
from factorized_fl.simulate.build import build_federation
from factorized_fl.simulate.networks import initial_model
from factorized_fl.simulate.rounds import run_round
from tests.tiny import tiny_config, tiny_federation, tiny_scenario

C = 3


def moments(centre: float, count: int, seed: int, classes: int = 4, far: float = 0.3) -> tuple[torch.Tensor, ...]:
    """Per-image means and mean squares around a domain's centre; every class has its own offset from it."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % classes
    offsets = far * torch.randn(classes, C, generator=torch.Generator().manual_seed(99), dtype=torch.float64)
    offsets -= offsets.mean(0)
    mean = centre + offsets[labels] + 0.2 * torch.randn(count, C, generator=generator, dtype=torch.float64)
    return torch.cat([mean, mean.square() + 1], 1), labels


def all_of(prints: torch.Tensor) -> torch.Tensor:
    return torch.ones(len(prints), dtype=torch.bool)


def test_a_client_without_a_fingerprint_has_likeness_zero_and_changes_no_other() -> None:
    prints = torch.stack([describe_images(*moments(0.0, 200, seed), 4) for seed in range(4)])
    received = torch.tensor([True, True, True, False])
    other = prints.clone()
    other[3] = 0.0
    found = likeness(prints, received)
    assert torch.equal(found, likeness(other, received))
    assert torch.equal(found[:3, :3], likeness(prints[:3], all_of(prints[:3])))
    assert found[3].tolist() == [0, 0, 0, 1]
    assert torch.equal(trust(prints, found, torch.full((4,), 200))[:3], trust(other, found, torch.full((4,), 200))[:3])


def test_mean_and_variance_by_hand() -> None:
    """Two classes with one image each: means 1 and 3, mean squares 2 and 12."""
    found = describe_images(torch.tensor([[1.0, 2.0], [3.0, 12.0]], dtype=torch.float64), torch.tensor([0, 1]), 2)
    assert found[0] == pytest.approx(2)
    assert found[1] == pytest.approx(torch.tensor(7.0 - 4.0).log())
    assert found.shape == (4,)
    assert found.isfinite().all()


def test_one_image_per_class_still_has_noise() -> None:
    rows, labels = moments(0.0, 4, 1)
    assert labels.tolist() == [0, 1, 2, 3]
    prints = torch.stack([describe_images(rows, labels, 4), describe_images(*moments(0.0, 4, 2), 4)])
    assert (prints[:, -2] > 0).all()
    assert apart(prints)[0, 1] < 5


def test_a_small_class_counts_more_than_its_share_of_images() -> None:
    """30 images count 1/2 and 270 count 9/10: the mean is (0 / 2 + 0.9 * 1) / 1.4, not 0.9."""
    labels = torch.tensor([0] * 30 + [1] * 270)
    rows = torch.stack([labels.double(), labels.double() + 1], 1)
    assert describe_images(rows, labels, 2)[0] == pytest.approx(0.9 / 1.4)


def test_only_the_first_layer_is_computed() -> None:
    model = build_model("cnn", 3, channels=1)
    images = torch.randn(5, 1, 8, 8)
    rows = first_layer(model, model.state_dict(), images)
    out = next(m for m in model.modules() if isinstance(m, torch.nn.Conv2d))(images).double()
    assert torch.allclose(rows, torch.cat([out.mean((2, 3)), out.square().mean((2, 3))], 1))


def test_clients_of_one_domain_differ_as_much_as_by_chance() -> None:
    prints = torch.stack([describe_images(*moments(0.0, 200, seed), 4) for seed in range(12)])
    pairs = apart(prints)[~torch.eye(12, dtype=torch.bool)]
    assert 0.5 < pairs.median() < 1.5
    assert likeness(prints, all_of(prints)).mean() > 0.7


def test_clients_of_different_domains_are_unlike_each_other() -> None:
    centres = [0.0, 0.0, 0.0, 1.0, 1.0, -2.0]
    prints = torch.stack([describe_images(*moments(centre, 200, seed), 4) for seed, centre in enumerate(centres)])
    alike = likeness(prints, all_of(prints))
    for i, one in enumerate(centres):
        for j, other in enumerate(centres):
            assert (alike[i, j] > 0.05) == (one == other)


@pytest.mark.parametrize("log", [20.0, 88.0, 900.0])
def test_one_clients_variance_does_not_change_how_others_are_matched(log: float) -> None:
    """The unit of the means comes from all variances: a huge one must not make all means the same."""
    centres = [0.0, 0.0, 2.0, 2.0, 0.0]
    prints = torch.stack([describe_images(*moments(centre, 200, seed), 4) for seed, centre in enumerate(centres)])
    honest = likeness(prints[:4], all_of(prints[:4]))
    prints[4, C : 2 * C] = log
    found = likeness(prints, all_of(prints))[:4, :4]
    assert (found[:2, :2] > 0.05).all()
    assert (found[2:, 2:] > 0.05).all()
    assert (found[:2, 2:] < 0.05).all()
    assert torch.equal(found > 0.05, honest > 0.05)


def test_plausible_variances_are_averaged_without_a_limit() -> None:
    prints = torch.stack(
        [describe_images(*moments(centre, 200, seed), 4) for seed, centre in enumerate([0.0, 1.0, 3.0])]
    )
    prints[0, C : 2 * C] += 4.0  # 50 times the variance of others is below the limit
    mean, logs, rest = prints.double().split([C, C, 2], 1)
    places = torch.cat([mean / logs.exp().mean(0).sqrt(), logs], 1)
    square = (places[:, None] - places[None]).square().sum(2)
    assert torch.equal(apart(prints), square / (rest[:, :1] + rest[:, :1].T))


def test_different_shares_of_the_same_classes_are_not_another_domain() -> None:
    """Each client has few images of another half of the classes; unweighted means would be far apart."""
    rows, labels = moments(0.0, 4000, 1, far=1.0)
    generator = torch.Generator().manual_seed(3)
    shares = torch.tensor([[0.9, 0.9, 0.03, 0.03], [0.03, 0.03, 0.9, 0.9]])
    chosen = [torch.rand(4000, generator=generator) < share[labels] for share in shares]
    prints = torch.stack([describe_images(rows[some], labels[some], 4) for some in chosen])
    plain = torch.stack([rows[some, :C].mean(0) for some in chosen])
    assert (plain[0] - plain[1]).norm() > 0.5
    assert apart(prints)[0, 1] < 3


def test_random_labels_are_not_trusted_if_labels_of_others_are_informative() -> None:
    found = [moments(0.0, 400, seed, far=0.5) for seed in range(4)]
    drawn = torch.randint(0, 4, (400,), generator=torch.Generator().manual_seed(5))
    prints = torch.stack(
        [describe_images(rows, drawn if k == 3 else labels, 4) for k, (rows, labels) in enumerate(found)]
    )
    alike = likeness(prints, all_of(prints))
    sizes = torch.full((4,), 400)
    trusted = trust(prints, torch.ones_like(alike), sizes)
    assert (trusted[:3] > 0.6).all()
    assert trusted[3] < 0.1
    uninformative = torch.stack([describe_images(rows, drawn, 4) for rows, _ in found])
    assert (trust(uninformative, torch.ones_like(alike), sizes) > 0.5).all()


def test_trust_by_hand() -> None:
    """Contrasts exceed 1 by 18, 6 and 0 with 300, 100 and 200 images: 24 for 600, so 12, 4 and 8 were expected."""
    prints = torch.zeros(3, 4)
    prints[:, -1] = torch.tensor([19.0, 7.0, 1.0])
    alike, sizes = torch.ones(3, 3, dtype=torch.float64), torch.tensor([300, 100, 200])
    assert trust(prints, alike, sizes).tolist() == pytest.approx([1.0, 1.0, 0.5 / 8.5])
    prints[1, -1] = 1.0  # 18 for 600 now: 3 were expected
    assert trust(prints, alike, sizes)[1] == pytest.approx(0.5 / 3.5)
    prints[2, -1] = torch.nan
    assert trust(prints, alike, sizes)[2] < 0.1


def test_few_images_or_a_single_class_do_not_lower_trust() -> None:
    sizes = torch.tensor([800, 800, 800, 60, 50])
    found = [moments(0.0, int(size), seed, far=0.15) for seed, size in enumerate(sizes)]
    found[4] = (found[4][0], torch.zeros(50, dtype=torch.int64))
    prints = torch.stack([describe_images(*one, 4) for one in found])
    assert prints[4, -1] == 0
    trusted = trust(prints, torch.ones(5, 5, dtype=torch.float64), sizes)
    assert prints[3, -1] < prints[:3, -1].min() / 4
    assert trusted[3] > 0.5
    assert trusted[4] == 1
    without = trust(prints[:4], torch.ones(4, 4, dtype=torch.float64), sizes[:4])
    assert torch.allclose(trusted[:4], without)  # a single class does not change the trust of others


def test_a_client_with_perfect_contrast_does_not_lower_trust_in_others() -> None:
    """The third client has copies of one image per class, so that its classes have no variance."""
    rows, labels = zip(*(moments(0.0, 400, seed, far=0.5) for seed in range(3)), strict=True)
    prints = torch.stack([describe_images(*moments(0.0, 400, seed, far=0.5), 4) for seed in range(3)])
    prints[2] = describe_images(rows[2][:4].repeat(100, 1), labels[2], 4)
    assert prints[2, -1] == 1000
    alike, sizes = torch.ones(3, 3, dtype=torch.float64), torch.full((3,), 400)
    assert (trust(prints, alike, sizes)[:2] > 0.5).all()
    claimed = prints.clone()
    claimed[2, -1] = 1e30
    assert torch.equal(trust(claimed, alike, sizes), trust(prints, alike, sizes))


def test_the_first_layer_does_not_depend_on_the_number_of_classes() -> None:
    config = tiny_config("factorized-peers")
    images = torch.randn(5, 1, 8, 8)
    few, many = (initial_model(config, classes, 1, labels_agree=False) for classes in (2, 9))
    seen = first_layer(few, few.state_dict(), images)
    assert torch.equal(seen, first_layer(many, many.state_dict(), images))
    assert few.fingerprint.shape == many.fingerprint.shape


def test_a_blurred_fingerprint_differs_less_and_declares_its_noise() -> None:
    prints = torch.stack([describe_images(*moments(centre, 200, seed), 4) for seed, centre in enumerate([0.0, 1.0])])
    generator = torch.Generator().manual_seed(1)
    blurred = torch.stack([blur(row, 3.0, 10.0, generator) for row in prints])
    assert blurred[0, -2] == pytest.approx(float(prints[0, -2]) + 2 * C * 9.0)
    assert apart(blurred)[0, 1] < apart(prints)[0, 1] / 5
    clipped = blur(prints[1], 0.0, 0.5, generator)
    assert (clipped[:C] / (clipped[C : 2 * C] / 2).exp() <= 0.5 + 1e-5).all()


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), order=st.permutations(range(4)), naming=st.permutations(range(4)))
def test_names_of_classes_and_numbers_of_clients_do_not_matter(seed, order, naming) -> None:
    found = [moments(centre, 60, seed + k) for k, centre in enumerate([0.0, 0.0, 1.0, 1.0])]
    prints = torch.stack([describe_images(rows, labels, 4) for rows, labels in found])
    renamed = torch.stack([describe_images(rows, torch.tensor(naming)[labels], 4) for rows, labels in found])
    assert torch.allclose(prints, renamed, rtol=1e-4, atol=1e-5)
    assert torch.allclose(apart(prints)[order][:, order], apart(prints[order]))


def test_matching_costs_less_than_a_kilobyte_with_resnet9() -> None:
    config = tiny_config("factorized-peers", model="resnet9", width=1.0)
    federation = build_federation(config, tiny_scenario(config), torch.device("cpu"))
    assert federation.clients.state.common["fingerprint"].shape[1] == 130
    other = tiny_federation("factorized-fl-beta", model="resnet9", width=1.0)
    with_it, without = (measured(each.clients.send([0]), each.roles)[1].bytes for each in (federation, other))
    assert 0 < with_it - without <= 1024


@pytest.mark.parametrize("method", ["factorized-fl", "factorized-fl-beta", "factorized-peers"])
def test_all_methods_that_match_can_match_by_images(method: str) -> None:
    options = {} if method == "factorized-peers" else {"match": "statistics"}
    federation = tiny_federation(method, options=options)
    before = federation.clients.state.common["fingerprint"].clone()
    assert before.abs().sum() > 0
    for round_number in (1, 2):
        _, mixing = run_round(federation, round_number)
    assert mixing is not None
    assert mixing.similarity is not None
    assert torch.equal(federation.clients.state.common["fingerprint"], before)
    assert torch.allclose(mixing.similarity, likeness(before, all_of(before)))


def test_first_blocks_can_be_averaged_over_all_clients() -> None:
    federation = tiny_federation("factorized-peers", options={"general": 1})
    run_round(federation, 1)
    _, mixing = run_round(federation, 2)
    assert mixing is not None
    assert {name.split(".")[0] for name in mixing.others} == {"conv1"}
    (row,) = {tuple(row) for weights in mixing.others.values() for row in dense(weights).tolist()}
    sizes = federation.scenario.sizes
    assert row == pytest.approx((sizes / sizes.sum()).tolist())

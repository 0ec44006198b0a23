"""Attacks on encrypted aggregation: by a server that lies, and by clients that send what no honest client would."""

import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from factorized_fl.core.errors import UserError
from factorized_fl.core.ledger import CIPHERTEXTS, CLAIMED_ROUNDS, CLAIMED_WEIGHTS
from factorized_fl.core.mixing import Dense, Mean
from factorized_fl.core.views import Mixing, Tensors
from factorized_fl.protect import ckks, packing
from factorized_fl.protect.ckks import BadCiphertext, Cipher, Secret
from factorized_fl.protect.client import BadAggregate, Sealer
from factorized_fl.protect.packing import Layout, from_row, to_row
from factorized_fl.protect.server import BlindSums
from factorized_fl.protect.tags import TOLERANCE, Tags

MASTER = bytes(range(32))
COUNT = 3
INITIAL = {"u": torch.full((5, 7), 0.5), "norm": torch.ones(3)}
ROWS = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.8, 0.1], [0.0, 0.25, 0.75]], dtype=torch.float64)


@pytest.fixture(scope="module")
def secret() -> Secret:
    return Secret(MASTER)


@pytest.fixture(scope="module")
def blind() -> BlindSums:
    return BlindSums(Layout(INITIAL))


@pytest.fixture
def sealer(secret: Secret) -> Sealer:
    return Sealer(secret, INITIAL, range(COUNT), COUNT)


def tensors_of(k: int, round_number: int = 1) -> Tensors:
    generator = torch.Generator().manual_seed(10 * round_number + k)
    return {name: torch.randn(like.shape, generator=generator) for name, like in INITIAL.items()}


def update(sealer: Sealer, round_number: int = 1, ks: tuple[int, ...] = (0, 1, 2)) -> torch.Tensor:
    stacked = {name: torch.stack([tensors_of(k, round_number)[name] for k in ks]) for name in INITIAL}
    return dict(sealer.sealed(round_number, ks, stacked.items()))[CIPHERTEXTS]


def opened(sealer: Sealer, items: Tensors, round_number: int = 2, k: int = 0) -> Tensors:
    return dict(sealer.opened(round_number, items.items(), {k: k}, lambda k: f"client {k + 1}"))


@pytest.fixture
def download(sealer: Sealer, blind: BlindSums) -> Tensors:
    return dict(blind.mix(Mixing(Dense(ROWS)), update(sealer), range(COUNT)))


def test_the_sum_is_that_of_plain_tensors_to_nine_digits(sealer: Sealer, download: Tensors) -> None:
    rows = {k: k for k in range(COUNT)}
    got = dict(sealer.opened(2, download.items(), rows))
    for name in INITIAL:
        stacked = torch.stack([tensors_of(k)[name] for k in range(COUNT)]).double()
        wanted = torch.einsum("kj,j...->k...", ROWS, stacked)
        torch.testing.assert_close(got[name].double(), wanted, rtol=1e-7, atol=1e-9)


# -- a server that lies


def refused(sealer: Sealer, items: Tensors, words: str, k: int = 0) -> None:
    with pytest.raises(BadAggregate, match=rf"^The aggregate of round 2 for client {k + 1} .*{words}.*\.$"):
        opened(sealer, items, k=k)


def test_another_clients_row_is_noticed(sealer: Sealer, download: Tensors) -> None:
    swapped = download | {CIPHERTEXTS: download[CIPHERTEXTS][[1, 0, 2]]}
    refused(sealer, swapped, "not the weighted sum of updates that the server claims")


def test_other_weights_than_the_claimed_ones_are_noticed(sealer: Sealer, download: Tensors) -> None:
    """A server that sends one client's tensors alone cannot pass them off as a mixture."""
    for row in ([0.5, 0.2, 0.3], [0.501, 0.299, 0.2], [1 / 3, 1 / 3, 1 / 3]):
        claimed = torch.tensor([row] * COUNT, dtype=torch.float64)
        refused(sealer, download | {CLAIMED_WEIGHTS: claimed}, "not the weighted sum")


def test_a_different_weighting_of_numbers_and_tags_is_noticed(
    sealer: Sealer, secret: Secret, download: Tensors
) -> None:
    """Weights per slot: honest weights for the tags, while all numbers are those of client 1 alone."""
    cipher, contents = Cipher(), [from_row(row, 1)[2][0] for row in update(sealer)]
    weights = []
    for k, honest in enumerate(ROWS[0].tolist()):
        slots = np.full(ckks.SLOTS, float(k == 1))
        slots[: packing.TAGS] = honest
        weights.append(slots)
    forged = cipher.weighted_sum([cipher.read(content) for content in contents], weights)
    row = to_row(packing.CIPHERTEXTS, 0, [forged], packing.row_size(1, ckks.DOWN))
    refused(sealer, download | {CIPHERTEXTS: row.expand(COUNT, -1)}, "not the weighted sum")


def test_an_added_constant_is_noticed(sealer: Sealer, download: Tensors) -> None:
    """CKKS lets anyone add a plain constant to a ciphertext."""
    cipher = Cipher()
    (content,) = from_row(download[CIPHERTEXTS][0], 1)[2]
    found, plain, seal = cipher.read(content, summed=True), cipher._seal.Plaintext(), cipher
    slots = np.zeros(ckks.SLOTS)
    slots[packing.TAGS + 3] = 0.01
    seal._encoder.encode(slots.tolist(), seal._summed, ckks.SCALE, plain)
    seal._evaluator.add_plain_inplace(found, plain)
    row = to_row(packing.CIPHERTEXTS, 0, [ckks._bytes_of(found)], packing.row_size(1, ckks.DOWN))
    refused(sealer, download | {CIPHERTEXTS: row.expand(COUNT, -1)}, "not the weighted sum")


def test_replayed_updates_and_aggregates_are_noticed(sealer: Sealer, blind: BlindSums, download: Tensors) -> None:
    opened(sealer, download)
    second = update(sealer, 2)
    later = dict(blind.mix(Mixing(Dense(ROWS)), second, range(COUNT)))
    opened(sealer, later, 3)
    with pytest.raises(BadAggregate, match="holds an older update than an aggregate of an earlier round"):
        opened(sealer, download, 4)
    passed_off = download | {CLAIMED_ROUNDS: later[CLAIMED_ROUNDS]}
    with pytest.raises(BadAggregate, match="not the weighted sum"):
        opened(sealer, passed_off, 4)
    with pytest.raises(BadAggregate, match="rounds that have not been trained"):
        opened(sealer, later, 2, k=1)


def test_a_row_below_the_minimum_of_peers_is_noticed_by_its_receiver(secret: Secret, blind: BlindSums) -> None:
    sealer = Sealer(secret, INITIAL, range(COUNT), COUNT, min_peers=1.5)
    rows = torch.tensor([[0.5, 0.5, 0.0], [0.3, 0.4, 0.3], [0.0, 0.0, 1.0]], dtype=torch.float64)
    items = dict(blind.mix(Mixing(Dense(rows)), update(sealer), range(COUNT)))
    with pytest.raises(BadAggregate, match=r"1\.00 effective peers, fewer than min_peers = 1\.5"):
        opened(sealer, items)
    for k in (1, 2):
        opened(sealer, items, k=k)


@pytest.mark.parametrize("row", [[0.5, 0.5, 0.5], [1.5, -0.5, 0.0], [float("nan"), 0.5, 0.5]])
def test_claims_that_are_no_weights_are_refused(sealer: Sealer, download: Tensors, row: list[float]) -> None:
    refused(sealer, download | {CLAIMED_WEIGHTS: torch.tensor([row] * COUNT)}, "weights do not sum to 1")


def test_a_row_without_ciphertexts_cannot_pass_for_a_sum(sealer: Sealer, download: Tensors) -> None:
    empty = to_row(packing.NOTHING, 0, [], packing.row_size(1, ckks.DOWN)).expand(COUNT, -1)
    refused(sealer, download | {CIPHERTEXTS: empty}, "weights do not fit its ciphertexts")


# -- what arrives at the server


def changed(row: torch.Tensor, place: int, value: int) -> torch.Tensor:
    row = row.clone()
    row[place] = value
    return row


def test_damaged_and_oversized_ciphertexts_are_refused(sealer: Sealer, blind: BlindSums) -> None:
    good = update(sealer)[0]
    blind.check(good, 1)
    huge = good.clone()
    huge[8:12] = torch.frombuffer(bytearray(struct.pack("<I", 2**32 - 1)), dtype=torch.uint8)
    for row, words in (
        (torch.zeros_like(good), "not those of round 1"),
        (torch.randint(0, 255, good.shape, dtype=torch.uint8), "not a known kind"),
        (changed(good, 4, 2), "not those of round 1"),
        (changed(good, 0, packing.NOT_FINITE), "more than the ciphertexts"),
        (huge, "fewer ciphertexts than are due"),
        (changed(good, 13, 77), "cannot be read"),
        (changed(good, len(good) - 1, 1), "more than the ciphertexts"),
    ):
        with pytest.raises(BadCiphertext, match=words):
            blind.check(row, 1)
    with pytest.raises(BadCiphertext, match="too large"):
        Cipher().read(bytes(ckks.UP + 1))


def test_a_replayed_update_of_an_earlier_round_is_refused(sealer: Sealer, blind: BlindSums) -> None:
    with pytest.raises(BadCiphertext, match="not those of round 2"):
        blind.check(update(sealer, 1)[0], 2)


def other_parameters(degree: int, bits: list[int]) -> bytes:
    import tenseal.sealapi as seal

    parameters = seal.EncryptionParameters(seal.SCHEME_TYPE.CKKS)
    parameters.set_poly_modulus_degree(degree)
    parameters.set_coeff_modulus(seal.CoeffModulus.Create(degree, bits))
    context = seal.SEALContext(parameters, True, seal.SEC_LEVEL_TYPE.TC128)
    plain = seal.Plaintext()
    seal.CKKSEncoder(context).encode([1.0], 2.0**20, plain)
    key = seal.KeyGenerator(context).secret_key()
    return ckks._bytes_of(seal.Encryptor(context, key).encrypt_symmetric(plain))


@pytest.mark.parametrize(("degree", "bits"), [(4096, [40, 20, 40]), (8192, [40, 30, 40]), (8192, [56, 48, 48, 56])])
def test_ciphertexts_of_other_parameters_are_refused(degree: int, bits: list[int]) -> None:
    with pytest.raises(BadCiphertext):
        Cipher().read(other_parameters(degree, bits)[: ckks.UP])


def test_a_secret_key_or_a_context_in_place_of_a_ciphertext_is_refused(secret: Secret, blind: BlindSums) -> None:
    """The server makes its own context from constants; what clients send can only be a ciphertext."""
    import tenseal as ts

    context = ts.context(ts.SCHEME_TYPE.CKKS, 4096, -1, [40, 20, 40])
    for content in (ckks._bytes_of(secret._key), context.serialize(save_secret_key=True)):
        with pytest.raises(BadCiphertext):
            Cipher().read(content[: ckks.UP])
        row = to_row(packing.CIPHERTEXTS, 1, [content[: ckks.UP]], blind.size)
        with pytest.raises(BadCiphertext):
            blind.check(row, 1)
    assert not hasattr(blind._cipher, "master")
    assert not hasattr(blind._cipher, "_key")


def test_a_sum_cannot_be_sent_in_place_of_a_fresh_ciphertext(blind: BlindSums, download: Tensors) -> None:
    (content,) = from_row(download[CIPHERTEXTS][0], 1)[2]
    with pytest.raises(BadCiphertext):
        Cipher().read(content[: ckks.UP])


def test_a_client_that_encrypts_with_another_secret_is_noticed(sealer: Sealer, blind: BlindSums) -> None:
    stranger = Sealer(Secret(b"x" * 32), INITIAL, range(COUNT), COUNT)
    stacked = torch.stack([update(sealer)[0], update(stranger)[1], update(sealer)[2]])
    items = dict(blind.mix(Mixing(Dense(ROWS)), stacked, range(COUNT)))
    refused(sealer, items, "not the weighted sum")


# -- clients' numbers


def test_nan_is_announced_and_not_encrypted(sealer: Sealer, blind: BlindSums) -> None:
    bad = {name: torch.full((1, *like.shape), float("nan")) for name, like in INITIAL.items()}
    (row,) = dict(sealer.sealed(1, [0], bad.items()))[CIPHERTEXTS]
    with pytest.raises(BadCiphertext, match="its tensors are not finite"):
        blind.check(row, 1)
    good = update(sealer)
    items = dict(blind.mix(Mixing(Dense(ROWS)), torch.stack([row, good[1], good[2]]), range(COUNT)))
    assert opened(sealer, items)["u"][0].isnan().all()
    assert opened(sealer, items, k=2)["u"][2].isfinite().all()  # gives client 1 no weight


def test_huge_numbers_are_cut_off_by_the_sender(sealer: Sealer, blind: BlindSums) -> None:
    huge = {name: torch.full((COUNT, *like.shape), 1e30) for name, like in INITIAL.items()}
    stacked = dict(sealer.sealed(1, range(COUNT), huge.items()))[CIPHERTEXTS]
    third = Mean(torch.full((COUNT,), 1 / 3, dtype=torch.float64))
    items = dict(blind.mix(Mixing(third), stacked, range(COUNT)))
    torch.testing.assert_close(opened(sealer, items)["u"][0], torch.full((5, 7), ckks.LIMIT))


@pytest.mark.parametrize(
    ("size", "words"), [(1e3, "numbers above 256, which a sender did not cut off"), (1e8, "not the weighted sum")]
)
def test_numbers_that_a_sender_did_not_cut_off_are_noticed(
    sealer: Sealer, blind: BlindSums, secret: Secret, size: float, words: str
) -> None:
    """Numbers far beyond the limit wrap around, so that their tags no longer fit."""
    stacked = update(sealer)
    stacked[0] = with_numbers(secret, size, 38)
    items = dict(blind.mix(Mixing(Dense(ROWS)), stacked, range(COUNT)))
    refused(sealer, items, words)


# -- norms of single updates, for a receiver that refused a sum


def with_numbers(secret: Secret, size: float, count: int, seat: int = 0) -> torch.Tensor:
    """An update that a sender did not cut off: so many numbers of that size, and honest tags."""
    numbers = np.zeros(packing.ROOM)
    numbers[:count] = size
    tags = Tags(secret)
    values = np.concatenate([tags.of(numbers, 0) + tags.masks(seat, 1, 0), numbers])
    return to_row(packing.CIPHERTEXTS, 1, [secret.encrypt(values)], packing.row_size(1, ckks.UP))


@pytest.mark.parametrize("size", [3.0, 0.02, 7e4])
def test_the_norm_of_a_single_number_is_that_number(
    sealer: Sealer, blind: BlindSums, secret: Secret, size: float
) -> None:
    """Each tag is then plus or minus that number, so the estimate is exact."""
    assert sealer.norm(blind.tags(with_numbers(secret, size, 1)), 0, 1) == size


def test_the_norm_of_many_numbers_is_estimated_to_a_quarter(sealer: Sealer, blind: BlindSums, secret: Secret) -> None:
    norms = [sealer.norm(blind.tags(with_numbers(secret, size, 100)), 0, 1) / (10 * size) for size in (0.1, 2.0, 30.0)]
    assert all(0.5 < norm < 1.6 for norm in norms)


def test_tags_alone_show_no_number_of_a_sender(blind: BlindSums, secret: Secret) -> None:
    (content,) = from_row(blind.tags(with_numbers(secret, 5.0, packing.ROOM)), 1)[2]
    assert np.abs(secret.decrypt(content)[packing.TAGS :]).max() < TOLERANCE


def test_a_norm_is_estimated_from_tags_alone(sealer: Sealer, blind: BlindSums, secret: Secret) -> None:
    """Not from numbers too large to be computed with, from another secret's, or from whole updates."""
    far_too_large = with_numbers(secret, 1e12, 100)
    strangers = with_numbers(Secret(b"x" * 32), 1.0, 100)
    for row in (far_too_large, strangers):
        with pytest.raises(BadCiphertext, match="far too large, or encrypted with another secret"):
            sealer.norm(blind.tags(row), 0, 1)
    (content,) = from_row(with_numbers(secret, 1.0, 100), 1)[2]
    whole = blind._cipher.weighted_sum([blind._cipher.read(content)], [1.0])
    with pytest.raises(BadCiphertext, match="far too large"):
        sealer.norm(to_row(packing.CIPHERTEXTS, 0, [whole], packing.row_size(1, ckks.DOWN)), 0, 1)
    with pytest.raises(BadCiphertext, match="holds no ciphertext"):
        sealer.norm(to_row(packing.NOTHING, 0, [], packing.row_size(1, ckks.DOWN)), 0, 1)


def test_a_client_that_never_sent_counts_with_the_common_start(sealer: Sealer, blind: BlindSums) -> None:
    stacked = update(sealer)
    stacked[2] = 0
    items = dict(blind.mix(Mixing(Dense(ROWS)), stacked, range(COUNT)))
    wanted = 0.5 * tensors_of(0)["u"] + 0.3 * tensors_of(1)["u"] + 0.2 * INITIAL["u"]
    torch.testing.assert_close(opened(sealer, items)["u"][0], wanted)
    only = dict(blind.mix(Mixing(Dense(torch.eye(3, dtype=torch.float64))), stacked, range(COUNT)))
    assert torch.equal(opened(sealer, only, k=2)["u"][2], INITIAL["u"])


# -- the parts


def test_one_secret_gives_one_key_and_repeatable_ciphertexts_differ_by_message(secret: Secret) -> None:
    again, numbers = Secret(MASTER), np.arange(5.0)
    assert again.mark == secret.mark != Secret(b"y" * 32).mark
    sums = Cipher().weighted_sum([Cipher().read(again.encrypt(numbers))], [1.0])
    np.testing.assert_allclose(secret.decrypt(sums)[:5], numbers, atol=1e-9)
    assert secret.encrypt(numbers) != secret.encrypt(numbers)
    one = Sealer(secret, INITIAL, range(COUNT), COUNT, repeatable=True)
    assert torch.equal(update(one), update(one))
    assert not torch.equal(update(one), update(one, 2))
    with pytest.raises(UserError, match="has 32 bytes, not 3"):
        Secret(b"abc")


@settings(max_examples=30)
@given(st.lists(st.lists(st.integers(0, 4), min_size=0, max_size=3), min_size=1, max_size=4))
def test_packing_gives_tensors_back(shapes: list[list[int]]) -> None:
    tensors = {f"t{i}": torch.randn(2, *shape, dtype=torch.float64) for i, shape in enumerate(shapes)}
    layout = Layout({name: stacked[0] for name, stacked in tensors.items()})
    back = layout.unpack(layout.pack(tensors))
    assert back.keys() == tensors.keys()
    assert all(torch.equal(back[name], tensors[name]) for name in tensors)


def test_more_numbers_than_slots_take_several_ciphertexts(secret: Secret) -> None:
    initial = {"w": torch.zeros(packing.ROOM + 1)}
    blind, sealer = BlindSums(Layout(initial)), Sealer(secret, initial, range(2), 2)
    values = torch.randn(2, packing.ROOM + 1)
    stacked = dict(sealer.sealed(1, range(2), [("w", values)]))[CIPHERTEXTS]
    half = Mixing(Mean(torch.full((2,), 0.5, dtype=torch.float64)))
    items = dict(blind.mix(half, stacked, range(2)))
    torch.testing.assert_close(opened(sealer, items)["w"][0], values.mean(0))
    contents = [from_row(row, 2)[2] for row in items[CIPHERTEXTS]]
    row = to_row(packing.CIPHERTEXTS, 0, contents[0][::-1], items[CIPHERTEXTS].shape[1])
    refused(sealer, items | {CIPHERTEXTS: torch.stack([row, row])}, "not the weighted sum")  # in another order


def test_the_error_is_far_below_the_tolerance_of_tags(secret: Secret) -> None:
    cipher, generator = Cipher(), np.random.default_rng(1)
    values = generator.normal(0, 50, (8, ckks.SLOTS)).clip(-ckks.LIMIT, ckks.LIMIT)
    weights = generator.dirichlet(np.ones(8)).tolist()
    total = cipher.weighted_sum([cipher.read(secret.encrypt(v)) for v in values], weights)
    assert np.abs(secret.decrypt(total) - weights @ values).max() < TOLERANCE / 20

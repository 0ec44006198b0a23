"""Three sites with encrypted aggregation: equal to the plain federation, and the coordinator can read nothing."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from factorized_fl.core.errors import UserError
from factorized_fl.core.ledger import CIPHERTEXTS
from factorized_fl.core.payload import decode, encode
from factorized_fl.protect import ckks, packing
from factorized_fl.protect.ckks import Secret
from factorized_fl.protect.client import Sealer
from factorized_fl.protect.packing import to_row
from factorized_fl.results.rundir import RunDirectory
from factorized_fl.results.schema import COORDINATOR
from factorized_fl.silo.agreement import NOISE_SEED, Kit
from factorized_fl.silo.kits import readme
from factorized_fl.silo.messages import BadMessage, Message
from factorized_fl.silo.norms import Refusal
from factorized_fl.silo.secret import EXCHANGE_KEY, SECRET, SecretKeeper
from factorized_fl.silo.site import Site
from factorized_fl.silo.transport import network
from tests.silo.certificates import certify
from tests.silo.loopback import Loopback
from tests.silo.parties import NAMES, kits_of, make_sites, trio_config, write_trio


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_trio(tmp_path_factory.mktemp("trio"))


def encrypted_kits(root: Path, method: str = "factorized-peers", **settings: Any) -> dict[str, Kit]:
    kits = kits_of(root, trio_config(method, protect="encrypt", lr=0.01, **settings))
    certify(kits, NAMES)
    for site in NAMES:
        (kits[site].path / NOISE_SEED).write_text("1")
    return kits


def final(sites: dict[str, Site]) -> list[dict[str, torch.Tensor]]:
    return [site.federation.clients.state.client(0) for site in sites.values()]


@pytest.mark.parametrize(
    ("method", "settings"), [("factorized-peers", {}), ("fedavg", {"fraction": 0.67, "rounds": 4})]
)
def test_an_encrypted_federation_equals_the_plain_one(
    method: str, settings: dict[str, Any], data: Path, tmp_path: Path
) -> None:
    kits = encrypted_kits(tmp_path / "encrypted", method, **settings)
    sites = make_sites(kits, data)
    parties = Loopback(kits, sites)
    assert parties.run()
    plain_kits = kits_of(tmp_path / "plain", trio_config(method, lr=0.01, **settings))
    for site in NAMES:
        (plain_kits[site].path / NOISE_SEED).write_text("1")
    plain_sites = make_sites(plain_kits, data)
    assert Loopback(plain_kits, plain_sites).run()
    for one, two in zip(final(sites), final(plain_sites), strict=True):
        for name, tensor in one.items():
            torch.testing.assert_close(tensor, two[name], rtol=1e-5, atol=2e-6, msg=name)
    ours, theirs = (RunDirectory(each[COORDINATOR].run).metrics() for each in (kits, plain_kits))
    assert [line["accuracy"] for line in ours] == [line["accuracy"] for line in theirs]
    assert [line["effective_peers"] for line in ours] == pytest.approx([line["effective_peers"] for line in theirs])
    assert all("encrypted" in line["up_roles"] for line in ours if line["steps"])
    marks = {line.split("mark ")[1] for line in parties.journal if "has the sites' secret" in line}
    assert len(marks) == 1
    _search_coordinator(kits, parties, sites)


def _search_coordinator(kits: dict[str, Kit], parties: Loopback, sites: dict[str, Site]) -> None:
    """No file and no tensor of the coordinator holds the secret, or numbers that a site shared."""
    secret = (kits["aster"].path / SECRET).read_bytes()
    assert all((kits[site].path / SECRET).read_bytes() == secret for site in NAMES)
    assert all((kits[site].path / SECRET).stat().st_mode & 0o77 == 0 for site in NAMES)
    assert not any((kits[site].path / EXCHANGE_KEY).exists() for site in NAMES)
    folder = kits[COORDINATOR].path
    held = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    held += [tensor.numpy().tobytes() for tensor in parties.coordinator.memory.tensors.values()]
    key = Secret(secret)
    needles = [secret, key.master.hex().encode(), key.derive(b"key")]
    for site in sites.values():
        for name in site.federation.shared:
            numbers = site.federation.clients.state.common[name][0].flatten()[:3]
            if len(numbers) == 3 and not torch.equal(numbers, numbers[:1].expand(3)):
                needles += [numbers.numpy().tobytes(), numbers.double().numpy().tobytes()]
    assert not any(needle in content for needle in needles for content in held)


def test_a_restarted_coordinator_and_site_go_on(data: Path, tmp_path: Path) -> None:
    kits = encrypted_kits(tmp_path, "fedavg")
    sites = make_sites(kits, data)
    first = Loopback(kits, sites)
    complete = first.coordinator.directory.save_checkpoint

    def stop_after_two(round_number: int, *args: Any, **tags: str) -> None:
        complete(round_number, *args, **tags)
        if round_number == 2:
            first.coordinator.stop.set()
            first.mailbox.ended = True  # its sites are to end as well

    first.coordinator.directory.save_checkpoint = stop_after_two  # type: ignore[method-assign]
    assert not first.run()
    again = Loopback(kits, make_sites(kits, data))
    assert again.run()
    assert RunDirectory(kits[COORDINATOR].run).summary() is not None
    assert not any("refused" in line for line in again.journal)


# -- the exchange of the secret


def keepers(kits: dict[str, Kit]) -> dict[str, SecretKeeper]:
    return {site: SecretKeeper(kits[site], network().credentials(kits[site])) for site in NAMES}


@pytest.mark.parametrize("rsa_keys", [False, True])
def test_the_secret_reaches_each_site_under_its_own_key(rsa_keys: bool, tmp_path: Path) -> None:
    kits = encrypted_kits(tmp_path)
    certify(kits, NAMES, rsa_keys=rsa_keys)
    aster, birch, cedar = keepers(kits).values()
    aster.make()
    wrapped = aster.wrap({"birch": birch.offer(), "cedar": cedar.offer()})
    assert aster.secret is not None
    assert aster.secret not in json.dumps(wrapped).encode()
    with pytest.raises(BadMessage, match="signature"):
        birch.take(wrapped["cedar"])
    birch.take(wrapped["birch"])
    cedar.take(wrapped["cedar"])
    assert birch.secret == cedar.secret == aster.secret
    birch.take({})  # a site that has the secret takes no other


def test_only_sites_of_this_federation_get_the_secret(tmp_path: Path) -> None:
    kits = encrypted_kits(tmp_path / "own")
    aster, birch, _ = keepers(kits).values()
    aster.make()
    strangers = keepers(encrypted_kits(tmp_path / "strangers"))
    stranger, offer = strangers["birch"], birch.offer()
    certify(kits, ["cedar"])
    renewed = keepers(kits)["cedar"]
    for name, bad, words in (
        ("birch", stranger.offer(), "no valid certificate"),
        ("cedar", renewed.offer(), "no valid certificate"),
        ("cedar", offer, "the certificate of another party"),
        ("coordinator", offer, "the certificate of another party"),
        ("birch", offer | {"public": stranger.offer()["public"]}, "wrong signature"),
        ("birch", {"certificate": "x"}, "no valid certificate"),
        ("birch", {}, "no valid certificate"),
    ):
        with pytest.raises(BadMessage, match=words):
            aster.wrap({name: bad})
    strangers["aster"].make()
    with pytest.raises(BadMessage):
        birch.take(strangers["aster"].wrap({"birch": stranger.offer()})["birch"])
    assert birch.secret is None


def test_an_expired_certificate_gets_no_secret(tmp_path: Path) -> None:
    kits = encrypted_kits(tmp_path)
    certify(kits, NAMES, days=(-3, -1))
    aster, birch, _ = keepers(kits).values()
    aster.make()
    with pytest.raises(BadMessage, match="expired or not yet valid"):
        aster.wrap({"birch": birch.offer()})


def test_a_damaged_secret_is_named(tmp_path: Path) -> None:
    kits = encrypted_kits(tmp_path)
    (kits["aster"].path / SECRET).write_bytes(b"short")
    with pytest.raises(UserError, match="is damaged: remove it"):
        _ = keepers(kits)["aster"].secret


# -- attacks in a running federation


class Tampering(Loopback):
    """A coordinator that changes what it sends in round 2."""

    def change(self, tensors: dict[str, torch.Tensor]) -> None:
        raise NotImplementedError

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        request = self.coordinator._request

        def tampered(k: int) -> Message:
            made = request(k)
            if made.fields["round"] == 2 and k == 0:
                tensors = decode(made.payload)
                self.change(tensors)
                return replace(made, payload=encode(tensors))
            return made

        self.coordinator._request = tampered  # type: ignore[method-assign]


def test_a_site_refuses_another_sites_row_names_the_round_and_goes_on(data: Path, tmp_path: Path) -> None:
    kits = encrypted_kits(tmp_path)
    lines: list[str] = []

    class Swapping(Tampering):
        def change(self, tensors: dict[str, torch.Tensor]) -> None:
            tensors[CIPHERTEXTS] = self.coordinator.sent[1][CIPHERTEXTS]

    assert Swapping(kits, make_sites(kits, data, lines.append)).run()
    assert any(
        "The aggregate of round 2 for this site cannot be trusted: it is not the weighted sum" in s for s in lines
    )
    assert any(line.startswith("did not use the coordinator's download of round 2") for line in lines)
    rounds = [line["round"] for line in RunDirectory(kits["aster"].run).metrics()]
    assert 3 in rounds


def test_a_site_that_replays_or_damages_its_ciphertexts_gets_strikes(data: Path, tmp_path: Path) -> None:
    kits = encrypted_kits(tmp_path, rounds=3)
    sites = make_sites(kits, data)
    honest, answers = sites["aster"].answer, []

    def replaying(request: Message) -> Message:
        made = honest(request)
        if request.kind == "round":
            answers.append(made.payload)
            if len(answers) == 2:
                return replace(made, payload=answers[0])
        return made

    def damaging(request: Message) -> Message:
        made = honest_too(request)
        if request.kind == "round" and request.fields["round"] == 3:
            tensors = decode(made.payload)
            tensors[CIPHERTEXTS] = torch.randint(0, 255, tensors[CIPHERTEXTS].shape, dtype=torch.uint8)
            return replace(made, payload=encode(tensors))
        return made

    honest_too = sites["birch"].answer
    sites["aster"].answer, sites["birch"].answer = replaying, damaging  # type: ignore[method-assign]
    parties = Loopback(kits, sites)
    assert parties.run()
    assert any("aster: dropped its answer, as its ciphertexts are not those of round 2" in s for s in parties.journal)
    assert any("birch: dropped its answer, as" in line and "row" in line for line in parties.journal)


def encrypt_large(sealer: Sealer, factor: float) -> Callable[[int, int, np.ndarray], torch.Tensor]:
    """The encryption of a sender that multiplies its numbers and does not cut them off."""

    def encrypt(round_number: int, seat: int, numbers: np.ndarray) -> torch.Tensor:
        contents = []
        for index, part in enumerate(factor * numbers):
            tags = sealer.tags.of(part, index) + sealer.tags.masks(seat, round_number, index)
            contents.append(sealer.secret.encrypt(np.concatenate([tags, part])))
        return to_row(packing.CIPHERTEXTS, round_number, contents, packing.row_size(len(contents), ckks.UP))

    return encrypt


@pytest.mark.parametrize("factor", [1e4, 1e6])
def test_the_norms_of_a_refused_sum_show_the_sender_at_fault(factor: float, data: Path, tmp_path: Path) -> None:
    """Random signs decide by how much an estimate differs from the norm: a factor of four allows for it."""
    kits = encrypted_kits(tmp_path, "fedavg", rounds=2)
    sites = make_sites(kits, data)
    honest, norms = sites["birch"].answer, dict[str, float]()

    def dishonest(request: Message) -> Message:
        if (sealer := sites["birch"].federation.sealer) is not None:
            sealer._encrypt = encrypt_large(sealer, factor)  # type: ignore[method-assign]
        return honest(request)

    sites["birch"].answer = dishonest  # type: ignore[method-assign]
    parties = Loopback(kits, sites)
    assert parties.run()
    for name, site in sites.items():
        shared = site.federation.sealer.initial  # type: ignore[union-attr]
        norms[name] = float((shared**2).sum() ** 0.5) * (factor if name == "birch" else 1)
    said = [line for line in parties.journal if "the norm of its update" in line]
    assert len(said) == 6
    found = [
        match for line in said if (match := re.fullmatch(r"(\w+): \w+ estimates .* of round 1 as ([\d.e+]+)", line))
    ]
    assert all(norms[match[1]] / 4 < float(match[2]) < norms[match[1]] * 4 for match in found)
    senders = [match[1] for match in found]
    assert (senders.count("aster"), senders.count("cedar"), senders.count("birch")) == (2, 2, 2 if factor < 1e5 else 0)
    unknown = "its numbers are far too large, or .*"
    refused = [line for line in said if re.fullmatch(rf"birch: \w+ cannot estimate .* of round 1: {unknown}", line)]
    assert len(refused) == 6 - len(found)


def test_norms_are_estimated_once_and_for_refused_downloads_only(data: Path, tmp_path: Path) -> None:
    kits = encrypted_kits(tmp_path)
    site = make_sites(kits, data)["aster"]

    def reason(**fields: int) -> object:
        about = {"request": "norm-2-birch", "round": 2, "seat": 1, "sent": 1, **fields}
        return site.answer(Message("norm", kits["aster"].agreement.id, about)).fields["reason"]

    assert reason() == "this site refused no aggregate of that round"
    site.refusal = Refusal(2)
    assert reason() == "this site refused no aggregate of that round"  # it has no secret yet
    site.secret.make()  # type: ignore[union-attr]
    site._attach(site.federation)
    assert reason(round=1) == "this site refused no aggregate of that round"
    assert str(reason(seat=3)).startswith("seat is 3, not a whole number from 0 to 2")
    assert str(reason()).startswith("it must hold 1 tensors")
    assert reason() == "this site has estimated that norm already"


def test_kits_say_what_is_encrypted_and_allow_for_ciphertexts(tmp_path: Path) -> None:
    kits = encrypted_kits(tmp_path)
    text = readme("aster", kits["aster"].agreement, kits["aster"].config)
    assert "encrypted, so that the coordinator cannot read them" in text

"""The clients' half of encrypted aggregation: encrypt uploads, decrypt and check downloads."""

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import torch

from factorized_fl.core.dominance import effective_peers
from factorized_fl.core.errors import UserError
from factorized_fl.core.ledger import CIPHERTEXTS, CLAIMED_ROUNDS, CLAIMED_WEIGHTS
from factorized_fl.core.mixing import Dense
from factorized_fl.core.views import Tensors
from factorized_fl.protect import packing
from factorized_fl.protect.ckks import DOWN, LIMIT, SLOTS, UP, BadCiphertext, Secret
from factorized_fl.protect.packing import Layout, from_row, to_row
from factorized_fl.protect.tags import TOLERANCE, Tags

Items = Iterable[tuple[str, torch.Tensor]]
_SUM = 1e-5  # largest difference of the sum of claimed weights from 1


class BadAggregate(UserError):
    """A download that is not the weighted sum of the clients' updates that the server claims."""


class Sealer:
    """Encrypts and decrypts for the clients of one process, which all know the sites' secret.

    `seats` are the positions of these clients among all `count` clients of the federation.
    """

    def __init__(
        self,
        secret: Secret,
        initial: Tensors,
        seats: Sequence[int],
        count: int,
        *,
        min_peers: float = 0.0,
        repeatable: bool = False,
    ) -> None:
        self.secret, self.layout, self.seats, self.count = secret, Layout(initial), list(seats), count
        self.min_peers, self.repeatable = min_peers, repeatable
        (self.initial,) = self.layout.pack({name: tensor[None] for name, tensor in initial.items()})
        self.tags = Tags(secret)
        self.seen = torch.zeros(len(self.seats), count, dtype=torch.int32)  # round of the newest update of each sender
        self.seconds = {"encrypt": 0.0, "decrypt": 0.0}

    @property
    def due(self) -> Tensors:
        """Zeros in the shape and type of each tensor in one client's download."""
        size = packing.row_size(self.layout.ciphertexts, DOWN)
        return {
            CIPHERTEXTS: torch.zeros(size, dtype=torch.uint8),
            CLAIMED_WEIGHTS: torch.zeros(self.count, dtype=torch.float64),
            CLAIMED_ROUNDS: torch.zeros(self.count, dtype=torch.int32),
        }

    def sealed(self, round_number: int, ks: Sequence[int], items: Items) -> Iterator[tuple[str, torch.Tensor]]:
        """Return messages of some clients, [n, ...] by name, with one ciphertext tensor for the shared tensors.

        Numbers are cut off at 256. A client whose tensors are not finite sends a row without ciphertexts that says so.
        """
        shared: Tensors = {}
        for name, rows in items:
            if name in self.layout.like:
                shared[name] = rows
            else:
                yield name, rows
        if not shared:
            return
        began = time.perf_counter()
        packed = self.layout.pack(shared)
        found = [self._encrypt(round_number, self.seats[k], numbers) for k, numbers in zip(ks, packed, strict=True)]
        self.seconds["encrypt"] += time.perf_counter() - began
        yield CIPHERTEXTS, torch.stack(found)

    def _encrypt(self, round_number: int, seat: int, numbers: np.ndarray) -> torch.Tensor:
        size = packing.row_size(self.layout.ciphertexts, UP)
        if not np.isfinite(numbers).all():
            return to_row(packing.NOT_FINITE, round_number, [], size)
        numbers = numbers.clip(-LIMIT, LIMIT)
        contents = []
        for index, part in enumerate(numbers):
            tags = self.tags.of(part, index) + self.tags.masks(seat, round_number, index)
            values = np.concatenate([tags, part])
            seed = None
            if self.repeatable:  # the numbers are part of the seed: no two different messages have the same one
                digest = hashlib.blake2b(values.tobytes(), digest_size=32).digest()
                seed = self.secret.derive(f"encrypt/{seat}/{round_number}/{index}/".encode() + digest)
            contents.append(self.secret.encrypt(values, seed))
        return to_row(packing.CIPHERTEXTS, round_number, contents, size)

    def opened(
        self, round_number: int, items: Items, rows: Mapping[int, int], where: Callable[[int], str] = str
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """The tensors in a download, [n, ...]; `rows` says which of the n rows belong to clients that decrypt.

        The other rows are zero. Raises BadAggregate if a row fails a check; `where` names a client in the message.
        """
        given: Tensors = {}
        for name, tensor in items:
            if name in (CIPHERTEXTS, CLAIMED_WEIGHTS, CLAIMED_ROUNDS):
                given[name] = tensor
            else:
                yield name, tensor
        if not given:
            return
        began = time.perf_counter()
        known: dict[bytes, np.ndarray] = {}
        numbers = np.zeros((len(given[CIPHERTEXTS]), *self.initial.shape))
        for k, row in rows.items():
            try:
                numbers[row] = self._decrypt(round_number, k, {name: t[row] for name, t in given.items()}, known)
            except BadCiphertext as error:
                message = f"The aggregate of round {round_number} for {where(k)} cannot be trusted: {error}."
                raise BadAggregate(message) from None
        tensors = self.layout.unpack(numbers)
        self.seconds["decrypt"] += time.perf_counter() - began
        yield from tensors.items()

    def _decrypt(self, round_number: int, k: int, given: Tensors, known: dict[bytes, np.ndarray]) -> np.ndarray:
        """The numbers of one download after all checks; raises BadCiphertext if one fails."""
        weights, rounds = self._claims(round_number, k, given)
        kind, _, contents = from_row(given[CIPHERTEXTS], self.layout.ciphertexts)
        sent = np.flatnonzero((weights != 0) & (rounds > 0))  # the others still have the tensors that all began with
        if kind == packing.NOT_FINITE:
            return np.full_like(self.initial, np.nan)
        numbers = np.zeros_like(self.initial)
        if (kind == packing.NOTHING) != (not len(sent)):
            raise BadCiphertext("its weights do not fit its ciphertexts")
        for index, content in enumerate(contents):
            if content not in known:
                known[content] = self.secret.decrypt(content)
            tags, numbers[index] = known[content][: packing.TAGS], known[content][packing.TAGS :]
            masks = sum(weights[seat] * self.tags.masks(seat, int(rounds[seat]), index) for seat in sent.tolist())
            if not np.abs(tags - self.tags.of(numbers[index], index) - masks).max() <= TOLERANCE:
                raise BadCiphertext("it is not the weighted sum of updates that the server claims")
        if np.abs(numbers).max(initial=0.0) > LIMIT + _SUM:
            raise BadCiphertext(f"it holds numbers above {LIMIT:g}, which a sender did not cut off")
        self.seen[k] = torch.maximum(self.seen[k], torch.from_numpy(rounds))
        unsent = weights[(weights != 0) & (rounds == 0)].sum()
        return numbers + unsent * self.initial if unsent else numbers

    def norm(self, row: torch.Tensor, seat: int, round_number: int) -> float:
        """Estimate the norm of a client's update from a row with its tags and zeros, to one digit.

        A tag without its mask is the sum of all numbers with random signs, so its square is on average that of the
        norm. Eight of them give the norm to about a quarter. Raises BadCiphertext if the tags cannot be decrypted.
        """
        kind, _, contents = from_row(row, self.layout.ciphertexts)
        square = 0.0
        for index, content in enumerate(contents):
            slots = self.secret.decrypt(content)
            if not np.abs(slots[packing.TAGS :]).max() <= TOLERANCE:
                raise BadCiphertext("its numbers are far too large, or encrypted with another secret")
            sums = SLOTS * (slots[: packing.TAGS] - self.tags.masks(seat, round_number, index))
            square += float((sums**2).mean())
        if kind != packing.CIPHERTEXTS:
            raise BadCiphertext("it holds no ciphertext")
        return float(f"{square**0.5:.0e}")

    def _claims(self, round_number: int, k: int, given: Tensors) -> tuple[np.ndarray, np.ndarray]:
        """The weights and rounds that the server claims, after checks that need no decryption."""
        weights, rounds = given[CLAIMED_WEIGHTS].cpu().numpy(), given[CLAIMED_ROUNDS].cpu().numpy()
        if not np.isfinite(weights).all() or abs(weights.sum() - 1) > _SUM or (weights < -_SUM).any():
            raise BadCiphertext("its weights do not sum to 1")
        used = weights != 0
        if (rounds[used] >= round_number).any() or (rounds < 0).any():
            raise BadCiphertext("it claims updates of rounds that have not been trained")
        if (rounds[used] < self.seen[k].numpy()[used]).any():
            raise BadCiphertext("it holds an older update than an aggregate of an earlier round")
        seat = self.seats[k]
        (peers,) = effective_peers(Dense(torch.from_numpy(weights).expand(self.count, -1)), [seat]).tolist()
        if 0 < peers < self.min_peers * (1 - 1e-9):
            raise BadCiphertext(f"it has {peers:.2f} effective peers, fewer than min_peers = {self.min_peers:g}")
        return weights, rounds

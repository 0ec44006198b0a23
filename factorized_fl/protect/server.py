"""The server's half of encrypted aggregation: each receiver's weighted sum of ciphertexts, with plain weights."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from factorized_fl.core.ledger import CIPHERTEXTS, CLAIMED_ROUNDS, CLAIMED_WEIGHTS
from factorized_fl.core.views import Mixing
from factorized_fl.protect import packing
from factorized_fl.protect.ckks import DOWN, SLOTS, UP, BadCiphertext, Cipher
from factorized_fl.protect.packing import Layout, from_row, to_row

_LEAST = 1e-13  # a smaller weight would be encoded as zero


class BlindSums:
    """Weighted sums of rows of ciphertexts. It holds no secret, and no context that it uses comes from a client."""

    def __init__(self, layout: Layout) -> None:
        self._cipher, self._count = Cipher(), layout.ciphertexts
        self.size = packing.row_size(self._count, UP)
        self.seconds = {"mix": 0.0}

    def check(self, row: torch.Tensor, round_number: int) -> None:
        """Raises BadCiphertext unless a client's row holds readable ciphertexts of this round."""
        kind, sent, contents = from_row(row, self._count)
        if kind == packing.NOT_FINITE:
            raise BadCiphertext("its tensors are not finite")
        if kind == packing.NOTHING or sent != round_number:
            raise BadCiphertext(f"its ciphertexts are not those of round {round_number}")
        for content in contents:
            self._cipher.read(content)

    def round_of(self, row: torch.Tensor) -> int:
        """The round of a client's update; 0 without ciphertexts."""
        kind, sent, _ = from_row(row, self._count)
        return sent if kind == packing.CIPHERTEXTS else 0

    def tags(self, row: torch.Tensor) -> torch.Tensor:
        """A client's update, as a download, with its tags and with zeros in place of its numbers."""
        only = np.zeros(SLOTS)
        only[: packing.TAGS] = 1.0
        read = [self._cipher.read(content) for content in from_row(row, self._count)[2]]
        sums = [self._cipher.weighted_sum([ciphertext], [only]) for ciphertext in read]
        return to_row(packing.CIPHERTEXTS, 0, sums, packing.row_size(self._count, DOWN))

    def mix(self, mixing: Mixing, stacked: torch.Tensor, clients: Sequence[int]) -> Iterator[tuple[str, torch.Tensor]]:
        """The download of each participant: ciphertexts, and the weights and rounds of which they are the sum.

        Rounds are 0 for clients without weight, and for clients that have not sent an update yet.
        """
        began = time.perf_counter()
        weights = mixing.weights.rows(clients).double().cpu()
        weights = weights.where(weights.abs() > _LEAST, 0.0)
        read: dict[int, tuple[int, int, list[Any]]] = {}
        for j in (weights != 0).any(0).nonzero().flatten().tolist():
            kind, sent, contents = from_row(stacked[j], self._count)
            read[j] = kind, sent, [self._cipher.read(content) for content in contents]
        rounds = torch.zeros(weights.shape, dtype=torch.int32)
        made: dict[bytes, torch.Tensor] = {}  # equal weights give equal rows
        found = []
        for row, own in enumerate(weights):
            used = own.nonzero().flatten().tolist()
            for j in used:
                rounds[row, j] = read[j][1]
            key = own.numpy().tobytes()
            if key not in made:
                made[key] = self._sum([read[j] for j in used], own[used].tolist())
            found.append(made[key])
        self.seconds["mix"] += time.perf_counter() - began
        yield CIPHERTEXTS, torch.stack(found)
        yield CLAIMED_WEIGHTS, weights
        yield CLAIMED_ROUNDS, rounds

    def _sum(self, rows: Sequence[tuple[int, int, list[Any]]], weights: Sequence[float]) -> torch.Tensor:
        size = packing.row_size(self._count, DOWN)
        pairs = [(row, weight) for row, weight in zip(rows, weights, strict=True) if row[0] != packing.NOTHING]
        if any(kind == packing.NOT_FINITE for (kind, _, _), _ in pairs):
            return to_row(packing.NOT_FINITE, 0, [], size)
        if not pairs:
            return to_row(packing.NOTHING, 0, [], size)
        parts = [[contents[index] for (_, _, contents), _ in pairs] for index in range(self._count)]
        sums = [self._cipher.weighted_sum(part, [weight for _, weight in pairs]) for part in parts]
        return to_row(packing.CIPHERTEXTS, 0, sums, size)

"""Secret check sums in every ciphertext: they reveal a download that is not the weighted sum that the server claims.

Anyone can add and scale CKKS ciphertexts, slot by slot. So each client puts eight tags into each of its ciphertexts:
tag = <signs, numbers> / 4096 + mask. The signs depend on the place of the ciphertext in an update, the mask also on the
sender and on the round; both are derived from the sites' secret. A weighted sum of updates then has the weighted sum of
their tags. The receiver computes that sum from the decrypted numbers and from the weights and rounds that the server
claims. A server that changes numbers or ciphertexts, or claims other weights, senders or rounds than it used, would
have to guess signs or masks.
"""

import hashlib

import numpy as np

from factorized_fl.protect.ckks import SLOTS, Secret
from factorized_fl.protect.packing import ROOM, TAGS

TOLERANCE = 1e-8  # of a tag; the largest error measured is 2e-10
_LARGEST_MASK = 128.0


class Tags:
    """The tags of one federation."""

    def __init__(self, secret: Secret) -> None:
        self._secret = secret
        self._signs: dict[int, np.ndarray] = {}

    def of(self, numbers: np.ndarray, index: int) -> np.ndarray:
        """The part of the tags that depends on the numbers of one ciphertext, [TAGS]."""
        return self._signs_of(index) @ numbers / SLOTS

    def masks(self, seat: int, round_number: int, index: int) -> np.ndarray:
        """The part of the tags that depends on the sender, the round and the ciphertext's place, [TAGS]."""
        drawn = self._stream(f"mask/{seat}/{round_number}/{index}", 8 * TAGS)
        uniform = np.frombuffer(drawn, dtype="<u8").astype(np.float64) / 2.0**64
        return (2.0 * uniform - 1.0) * _LARGEST_MASK

    def _signs_of(self, index: int) -> np.ndarray:
        if index not in self._signs:
            drawn = np.frombuffer(self._stream(f"signs/{index}", -(-TAGS * ROOM // 8)), dtype=np.uint8)
            bits = np.unpackbits(drawn, count=TAGS * ROOM).reshape(TAGS, ROOM)
            self._signs[index] = 2 * bits.astype(np.int8) - 1
        return self._signs[index]

    def _stream(self, purpose: str, count: int) -> bytes:
        return hashlib.shake_256(self._secret.derive(f"tags/{purpose}".encode())).digest(count)

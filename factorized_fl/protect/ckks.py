"""CKKS through TenSEAL's binding of Microsoft SEAL: symmetric encryption, and one multiplication by plain weights.

A ring of degree 8192 holds 4096 numbers in a ciphertext. The primes of 56 and 48 bits, with one more of 56 bits that
SEAL reserves, stay below the 218 bits that the homomorphic encryption standard permits for 128 bits of security at this
degree. Weights are encoded with the second prime as their scale, so dropping that prime after the multiplication
restores the scale exactly and halves the ciphertext. The largest error measured is 2e-10. A client's ciphertext holds a
seed in place of its random half, which only the owner of the secret can make, so uploads are half as large.
"""

import hashlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from factorized_fl.core.errors import UserError

DEGREE, BITS = 8192, (56, 48, 56)
SCALE = 2.0**46
SLOTS = DEGREE // 2
LIMIT = 256.0  # limit of a client's numbers; sums beyond 512 would wrap around
UP, DOWN = 119_200, 124_400  # bytes kept for a ciphertext: 20 standard deviations above the mean of its size
SECRET_BYTES = 32

Weight = float | np.ndarray  # one weight for all slots, or one for each slot


class BadCiphertext(Exception):
    """A ciphertext that is damaged, or of other parameters; the text gives the reason."""


def require_tenseal() -> None:
    """Raise UserError if TenSEAL is missing."""
    try:
        import tenseal.sealapi  # noqa: F401
    except ImportError:
        raise UserError('Encrypted aggregation needs TenSEAL: pip install "factorized-fl[private]".') from None


class Cipher:
    """Operations on ciphertexts that need no secret."""

    def __init__(self) -> None:
        require_tenseal()
        import tenseal.sealapi as seal

        self._seal: Any = seal
        self._primes = seal.CoeffModulus.Create(DEGREE, list(BITS))
        self._context = self._make_context(None)
        self._encoder, self._evaluator = seal.CKKSEncoder(self._context), seal.Evaluator(self._context)
        self._fresh, self._summed = self._context.first_parms_id(), self._context.last_parms_id()
        self._weight_scale = float(self._primes[1].value())

    def _make_context(self, seed: bytes | None) -> Any:
        """The parameters; a seed of 64 bytes replaces the randomness of the operating system.

        With a seed the context can only make keys and encrypt. It lacks the parameters of sums, which take time.
        """
        seal = self._seal
        parameters = seal.EncryptionParameters(seal.SCHEME_TYPE.CKKS)
        parameters.set_poly_modulus_degree(DEGREE)
        parameters.set_coeff_modulus(self._primes)
        if seed is not None:
            words = np.frombuffer(seed, dtype="<u8").tolist()
            parameters.set_random_generator(seal.Blake2xbPRNGFactory(words))
        return seal.SEALContext(parameters, seed is None, seal.SEC_LEVEL_TYPE.TC128)

    def read(self, content: bytes, summed: bool = False) -> Any:
        """The ciphertext in these bytes; raises BadCiphertext if it is not a fresh one, or a sum if `summed`."""
        if len(content) > (DOWN if summed else UP):
            raise BadCiphertext(f"a ciphertext of {len(content):,} bytes is too large")
        found = self._seal.Ciphertext()
        try:
            with _file(content) as path:
                found.load(self._context, path)
        except (RuntimeError, ValueError, IndexError, MemoryError, OSError) as error:
            raise BadCiphertext(f"a ciphertext cannot be read ({error})") from None
        due = self._summed if summed else self._fresh
        if found.size() != 2 or found.parms_id() != due or found.scale != SCALE or not found.is_ntt_form():
            raise BadCiphertext("a ciphertext has other parameters than those of this federation")
        if found.is_transparent():  # it would stop the sum
            raise BadCiphertext("a ciphertext is not encrypted")
        return found

    def weighted_sum(self, ciphertexts: Sequence[Any], weights: Sequence[Weight]) -> bytes:
        """The sum of ciphertexts, each multiplied by its weight, as bytes."""
        total = None
        for ciphertext, weight in zip(ciphertexts, weights, strict=True):
            product, plain = self._seal.Ciphertext(), self._seal.Plaintext()
            value = weight.tolist() if isinstance(weight, np.ndarray) else float(weight)
            self._encoder.encode(value, self._fresh, self._weight_scale, plain)
            try:
                self._evaluator.multiply_plain(ciphertext, plain, product)
            except (RuntimeError, ValueError) as error:  # a transparent ciphertext, or a product without any secret
                raise BadCiphertext(f"a ciphertext cannot be weighted ({error})") from None
            if total is None:
                total = product
            else:
                self._evaluator.add_inplace(total, product)
        self._evaluator.rescale_to_next_inplace(total)
        return _bytes_of(total)


class Secret(Cipher):
    """The sites' common secret, derived from 32 random bytes: it encrypts and decrypts."""

    def __init__(self, master: bytes) -> None:
        super().__init__()
        if len(master) != SECRET_BYTES:
            raise UserError(f"The secret of a federation has {SECRET_BYTES} bytes, not {len(master)}.")
        self.master = master
        key = self._seal.KeyGenerator(self._make_context(self.derive(b"key"))).secret_key()
        self._key = key
        self._encryptor = self._seal.Encryptor(self._context, key)
        self._decryptor = self._seal.Decryptor(self._context, key)

    def derive(self, purpose: bytes) -> bytes:
        """64 bytes for one purpose, which only owners of the secret can compute."""
        return hashlib.blake2b(purpose, key=self.master, digest_size=64).digest()

    @property
    def mark(self) -> str:
        """Eight hexadecimal digits by which people can compare secrets without revealing them."""
        return self.derive(b"mark")[:4].hex()

    def encrypt(self, values: np.ndarray, seed: bytes | None = None) -> bytes:
        """A ciphertext of up to 4096 numbers; a seed of 64 bytes makes it reproducible.

        The seed must be derived from the secret and from the numbers: two ciphertexts of different numbers with one
        seed would reveal the difference of these numbers.
        """
        plain = self._seal.Plaintext()
        self._encoder.encode(values.tolist(), SCALE, plain)
        encryptor = self._encryptor if seed is None else self._seal.Encryptor(self._make_context(seed), self._key)
        return _bytes_of(encryptor.encrypt_symmetric(plain))

    def decrypt(self, content: bytes) -> np.ndarray:
        """The 4096 numbers in a sum, float64; raises BadCiphertext if it cannot be read."""
        plain = self._seal.Plaintext()
        self._decryptor.decrypt(self.read(content, summed=True), plain)
        return np.array(self._encoder.decode_double(plain))


@contextmanager
def _file(content: bytes = b"") -> Iterator[str]:
    """A file with this content for SEAL, which reads and writes files only: in memory where the system offers that."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("ciphertext")
        try:
            os.write(descriptor, content)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "ciphertext")
        with open(path, "wb") as file:
            file.write(content)
        yield path


def _bytes_of(found: Any) -> bytes:
    with _file() as path:
        found.save(path)
        with open(path, "rb") as file:
            return file.read()

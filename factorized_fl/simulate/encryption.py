"""The encrypted aggregation of a simulation, in which one process holds all clients and their secret."""

import hashlib

from factorized_fl.config import Config
from factorized_fl.core.clients import ClientState
from factorized_fl.core.errors import UserError
from factorized_fl.core.views import Tensors
from factorized_fl.protect.ckks import SECRET_BYTES, Secret
from factorized_fl.protect.client import Sealer


def refuse_extra_payloads(clients: ClientState) -> None:
    """Raises UserError for a method with payloads besides shared tensors, which would not be encrypted."""
    if clients.expected_up or clients.expected_down:
        raise UserError(
            f"{clients.method.name} sends further payloads besides shared tensors, and protect = 'encrypt' encrypts "
            "shared tensors only: use protect = 'none', or another method."
        )


def simulated_sealer(config: Config, initial: Tensors) -> Sealer:
    """The clients' half of a simulation's encryption, with a secret from the seed, so that runs can be repeated."""
    secret = Secret(hashlib.blake2b(f"secret/{config.seed}".encode(), digest_size=SECRET_BYTES).digest())
    everyone = range(config.clients)
    return Sealer(secret, initial, everyone, config.clients, min_peers=config.min_peers, repeatable=True)

"""The kits of a new federation: for each party its credentials, the agreement and a README."""

import os
from dataclasses import replace
from pathlib import Path

from factorized_fl.config import Config
from factorized_fl.core.errors import UserError
from factorized_fl.core.files import plain_errors, write_atomically
from factorized_fl.methods import METHODS
from factorized_fl.silo.agreement import AUTHORITY, COORDINATOR, Agreement, make_kit, read_agreement, write_kit
from factorized_fl.silo.checks import largest_message
from factorized_fl.silo.transport import network
from factorized_fl.simulate.build import initial_model


def make_kits(sites: Path, out: Path) -> Agreement:
    """Write all kits of a federation to a new folder, and the authority's key to a folder beside them."""
    transport = network()
    agreement, config = read_agreement(sites)
    agreement = replace(agreement, largest=_largest(config))
    with plain_errors(out):
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise UserError(f"'{out}' is there already: choose another folder with --out.")
        transport.require_installed()
        out.mkdir(parents=True, exist_ok=True)
        out.chmod(0o700)
        transport.make_credentials(agreement, out)
        for party in (COORDINATOR, *agreement.sites):
            write_kit(make_kit(out / party, party, agreement, config))
            write_atomically(out / party / "README.md", readme(party, agreement, config).encode())
        write_atomically(out / AUTHORITY / "README.md", _AUTHORITY.encode())
        for folder, _, files in os.walk(out):
            os.chmod(folder, 0o700)
            for file in files:
                os.chmod(Path(folder) / file, 0o600)
    return agreement


def _largest(config: Config) -> int:
    """A limit on the bytes of a message: a whole model, and some more."""
    return largest_message(initial_model(config, 2, config.channels, labels_agree=False).state_dict())


def readme(party: str, agreement: Agreement, config: Config) -> str:
    """The README of a party's kit."""
    method = METHODS[config.method].card.title
    what = (
        f"This is the kit of **{party}** in the federation *{agreement.name}*: {len(agreement.sites)} sites train with "
        f"{method}, {config.rounds} rounds of {config.epochs} epochs, on images of {config.image_size} pixels."
    )
    travels = METHODS[config.method].card.row[2]
    if config.build_method().looks_at_images:  # then clients are matched by a fingerprint of their images
        travels = f"{travels.partition(';')[0]}; a fingerprint of the images, averages of what the first layer sees"
    if party == COORDINATOR:
        return f"""# {agreement.name}: coordinator

{what}

    pip install "factorized-fl[network]"
    ffl serve .                    # stop with Ctrl-C; repeat to continue
    ffl federation status .        # in a second terminal
    ffl report .                   # a page: which tensors were sent to which site, bytes, accuracies that sites report

Port {agreement.port} of {agreement.address} must be reachable from the sites; nothing else. You will see the sites'
names, how many training images each has, and the tensors that travel ({travels}).
You will not see images, labels or class names, nor accuracies unless a site chooses to report them. A round ends when
all sites have answered, or after {agreement.deadline:g} s with at least {agreement.needed} answers. All results are in
`run/`. After a crash or a reboot, start again to continue.

The file in it that ends in `.key` is your private key: keep this folder to yourself.
"""
    return f"""# {agreement.name}: {party}

{what}

    pip install "factorized-fl[network,onnx]"
    ffl data inspect IMAGES        # one folder per class, or parquet; check your data before you join
    ffl join . --data IMAGES       # stop with Ctrl-C; repeat to continue
    ffl federation status .        # in a second terminal
    ffl report .                   # a page for you alone: did the federation help, the confusion matrix

Your machine connects to {agreement.address}:{agreement.port} and accepts no connections. It runs no code except the
code that you installed. These leave your machine: of your model {travels}; and your number of
training images. These never leave it: images, labels, class names, your classifier. Accuracies leave it only with
`--report-accuracy`.

At the end your model is in `model/`, with its accuracy beside that of a model trained on your images alone. After a
crash or a reboot, join again to continue.

The file in it that ends in `.key` is your private key: keep this folder to yourself.
"""


_AUTHORITY = """# Authority

`cert.json` holds the key that signs the certificates of this federation. No party needs it. Keep it offline, to add a
site later, or delete it.
"""

"""The kits of a new federation: for each party its credentials, the agreement and a README."""

import os
from dataclasses import asdict, replace
from pathlib import Path

import torch
from jinja2 import Environment, PackageLoader, StrictUndefined

from factorized_fl.config import Config
from factorized_fl.core.classes import with_room
from factorized_fl.core.errors import UserError
from factorized_fl.core.files import plain_errors, write_atomically
from factorized_fl.core.ledger import CIPHERTEXTS, CLAIMED_WEIGHTS, EXTRA
from factorized_fl.methods import METHODS
from factorized_fl.protect.ckks import DOWN
from factorized_fl.protect.packing import Layout, row_size
from factorized_fl.results.schema import COORDINATOR
from factorized_fl.silo.agreement import AUTHORITY, Agreement, Kit, read_agreement, write_kit
from factorized_fl.silo.authority import found
from factorized_fl.silo.checks import largest_message
from factorized_fl.silo.pinned import pin_model
from factorized_fl.silo.transport import network
from factorized_fl.simulate.alignment import network_alignment
from factorized_fl.simulate.networks import initial_model, travelling


def make_kits(sites: Path, out: Path, own_keys: bool = False) -> Agreement:
    """Write all kits of a federation to a new folder, and the authority's key to a folder beside them.

    With `own_keys` the kits have no private keys: each party makes its own and requests a certificate.
    """
    transport = network()
    agreement, config = read_agreement(sites)
    agreement = replace(pin_model(agreement, config), largest=_largest(config))
    with plain_errors(out):
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise UserError(f"'{out}' is there already: choose another folder with --out.")
        transport.require_installed()
        out.mkdir(parents=True, exist_ok=True)
        out.chmod(0o700)
        if own_keys:
            root = found(out / AUTHORITY, agreement, asdict(config))
        else:
            transport.make_credentials(agreement, out)
        for party in (COORDINATOR, *agreement.sites):
            if own_keys:
                write_keyless(Kit(out / party, party, agreement, asdict(config)), root)
            else:
                write_kit(Kit(out / party, party, agreement, asdict(config)))
        for folder in (COORDINATOR, *agreement.sites, AUTHORITY):
            write_atomically(out / folder / "README.md", readme(folder, agreement, config, own_keys).encode())
        for path, _, files in os.walk(out):
            os.chmod(path, 0o700)
            for file in files:
                os.chmod(Path(path) / file, 0o600)
    return agreement


def write_keyless(kit: Kit, root: bytes) -> None:
    """Write a kit that holds the authority's certificate, a README and no key."""
    place = network().credentials(kit).root
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomically(place, root)
    write_kit(kit)
    write_atomically(kit.path / "README.md", readme(kit.party, kit.agreement, kit.config, own_keys=True).encode())


def _largest(config: Config) -> int:
    """A limit on the bytes of a message: the trained part of a model, the method's extra payloads, and some more."""
    method, model = config.build_method(), initial_model(config, 2, config.channels, labels_agree=False)
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    tensors = {name: tensor for name, tensor in model.state_dict().items() if name not in frozen}
    alignment = network_alignment(config, method, model, 2)
    role_of, names = travelling(method, model, False, alignment)
    shared = frozenset(names)
    up, down = (
        with_room(hook(tensors, shared, role_of), method.class_payloads, config.align_classes if alignment else 0)
        for hook in (method.extra_up, method.extra_down)
    )
    extra = {f"{EXTRA}{way}/{name}": like for way, of in (("up", up), ("down", down)) for name, like in of.items()}
    if alignment:
        of_classes = alignment.sharing().up(tensors) | alignment.down(tensors)
        extra |= {EXTRA + name: like for name, like in of_classes.items()}
    if config.encrypts:
        if extra:
            raise UserError(
                f"{config.method} sends further payloads besides shared tensors, and protect = 'encrypt' encrypts "
                "shared tensors only: use protect = 'none', or another method."
            )
        rows = row_size(Layout({name: tensors[name] for name in shared}).ciphertexts, DOWN)
        extra = {CIPHERTEXTS: torch.zeros(rows, dtype=torch.uint8), CLAIMED_WEIGHTS: torch.zeros(3 * config.clients)}
    return largest_message(tensors | extra)


def readme(party: str, agreement: Agreement, config: Config, own_keys: bool = False) -> str:
    """The README of a party's kit, or of the authority's folder."""
    card = METHODS[config.method].card
    travels = card.row[2]
    if config.build_method().looks_at_images:  # then clients are matched by a fingerprint of their images
        travels = f"{travels.partition(';')[0]}; a fingerprint of the images, averages of what the first layer sees"
    if config.align == "statistics":
        travels += "; averages of random features of the images of each class, and their rows of the classifier"
    if config.align == "classifier":
        travels += "; the rows of the classifier and how training moves them"
    if config.encrypts:
        travels = f"{travels}; all shared tensors encrypted, so that the coordinator cannot read them"
    templates = Environment(loader=PackageLoader(__package__), undefined=StrictUndefined, keep_trailing_newline=True)
    template = templates.get_template(f"{party if party in (COORDINATOR, AUTHORITY) else 'site'}.md")
    inputs = f"inputs {config.inputs}" if config.inputs else f"images of {config.image_size} pixels"
    if agreement.features:
        inputs += f", the columns {', '.join(agreement.features)}"
    what = (
        f"This is the kit of **{party}** in the federation *{agreement.name}*: {len(agreement.sites)} sites train with "
        f"{card.title}, {config.rounds} rounds of {config.epochs} epochs, on {inputs}."
    )
    terms = {**asdict(agreement), "needed": agreement.needed, "deadline": f"{agreement.deadline:g}"}
    return template.render(
        terms, own_keys=own_keys, party=party, what=what, travels=travels, arrays=bool(config.inputs)
    )

"""The coordinator's state: the server's half of the round, and the roster of sites with strikes and quarantine."""

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError

from factorized_fl.config import Config
from factorized_fl.core.errors import UserError
from factorized_fl.core.ledger import CIPHERTEXTS, FINGERPRINT, Load
from factorized_fl.core.outliers import capped
from factorized_fl.core.server import Downloads, Losses, Sampling, ServerState
from factorized_fl.core.stack import untied_state
from factorized_fl.core.views import Cost, Tensors
from factorized_fl.protect.ckks import BadCiphertext
from factorized_fl.protect.packing import Layout
from factorized_fl.protect.server import BlindSums
from factorized_fl.results.rundir import Record, RunDirectory
from factorized_fl.silo.checksum import read_checked
from factorized_fl.silo.messages import BadMessage
from factorized_fl.simulate.alignment import network_alignment
from factorized_fl.simulate.networks import initial_model, travelling

STRIKES = 3  # bad updates in a row after which a site is quarantined


class Memory:
    """The tensors that every site last sent, and the roster of sites; a checkpoint holds all of it."""

    def __init__(self, config: Config, sites: Sequence[str]) -> None:
        self.config, self.sites, self.method = config, sites, config.build_method()
        self.sampling = Sampling(config.seed, config.clients, config.fraction, config.dropout)
        count = len(sites)
        # The body of a model does not depend on the number of classes, and the classifier never leaves a site.
        model = initial_model(config, 2, config.channels, labels_agree=False)
        first = untied_state(model)
        alignment = network_alignment(config, self.method, model, 2)
        self.roles, shared = travelling(self.method, model, False, alignment)
        self.body = {name: first[name] for name, role in self.roles.items() if not role.head}
        stack = {name: torch.stack([first[name]] * count) for name in shared}
        templates = {name: first[name] for name in shared}
        self.blind = BlindSums(Layout(templates)) if config.encrypts and shared else None
        self.server = ServerState(
            self.method,
            self.roles,
            seed=config.seed,
            stack=stack,
            initial=first,
            sizes=torch.ones(count, dtype=torch.float64),
            start={name: t.clone() for name, t in stack.items()} if self.method.needs_start else {},
            min_peers=config.min_peers,
            robust=config.robust,
            classes=alignment.sharing() if alignment else None,
            room=alignment.rows.most if alignment else 0,
            blind=self.blind,
            forgets=config.stale == "forget",
        )
        self.received = self.server.received  # whether each site's last update is used: bool [K]
        self.sizes = self.server.sizes  # the number of training images of each site, float64 [K]
        self.declared: dict[int, int] = {}  # numbers of training images that sites began with
        self.strikes = torch.zeros(count, dtype=torch.int64)
        self.aside = torch.zeros(count, dtype=torch.bool)

    @property
    def tensors(self) -> Tensors:
        """Return the tensors for a checkpoint."""
        return self.server.tensors | {"strikes": self.strikes, "aside": self.aside}

    def load(self, tensors: Tensors) -> None:
        """Restores a checkpoint; sites added after it begin with the initial tensors."""
        before = self.tensors
        count, now = len(tensors["received"]), len(self.sites)
        if count < now:
            of_method = [
                name for name in tensors if name.startswith("method")
            ]  # its size may depend on the number of sites
            tensors = {name: tensor for name, tensor in tensors.items() if name not in of_method}
            padded = {n: torch.cat([t, before[n][count:]]) for n, t in tensors.items() if n in before}
            tensors = {**tensors, **padded}
        for name, tensor in before.items():
            if name in tensors and tensors[name].shape != tensor.shape:
                raise ValueError(f"{name} has another shape")
        self.server.load(tensors)
        self.strikes.copy_(tensors["strikes"])
        self.aside.copy_(tensors["aside"])

    def learn_sizes(self, declared: Mapping[int, int]) -> dict[int, str]:
        """Takes the declared numbers of training images of sites without an update yet; returns remarks by site.

        A number counts up to three times the median of all, because a site could declare any number.
        """
        odd = {}
        known = {k: int(self.sizes[k]) if self.received[k] else count for k, count in declared.items()}
        most = dict(zip(known, capped(known.values()), strict=True))
        for k, count in declared.items():
            if self.received[k]:
                if count not in (int(self.sizes[k]), self.declared.get(k, count)):
                    odd[k] = f"declares {count} training images; it counts with {int(self.sizes[k])}, as before"
            else:
                if most[k] < count:
                    odd[k] = f"declares {count} training images; it counts with {most[k]}, three times the median"
                self.sizes[k] = most[k]
                self.declared[k] = count
        return odd

    def images(self, k: int, declared: int | None) -> int | None:
        """The number of training images that a site counts with, or else the declared one; None if unknown."""
        kept = int(self.sizes[k])
        if self.received[k] or (declared is None and kept > 1):  # 1 is also the value before any declaration
            return kept
        return declared

    def restore(self, directory: RunDirectory, federation: str, log: Callable[[str], None]) -> None:
        """Restores the last complete round on disk, or the one before it, which sites keep as well.

        If neither can be read, the run begins at round 0 again, and the coordinator continues from the sites' uploads.
        """
        for path in filter(Path.exists, (directory.checkpoint_path, directory.previous_path)):
            try:
                _, tensors, ours = read_checked(path, federation)
                if not ours:
                    raise UserError(f"'{path}' belongs to another federation: give this one a kit of its own.")
                self.load(tensors)
            except (OSError, SafetensorError, KeyError, ValueError, TypeError, RuntimeError) as error:
                log(f"{path.name} is damaged ({error})")
                os.replace(path, directory.path / "damaged.safetensors")
                continue
            if path == directory.previous_path:
                log("going back to the round before")
                os.replace(path, directory.checkpoint_path)
            return

    def describe(self) -> list[Record]:
        """The sites for clients.json, as far as the coordinator may know them."""
        nothing = {"classes": [], "validation": 0, "test": 0, "holdout": 0}
        return [
            {"name": site, "domain": site, "train": int(size) if received else 0, **nothing}
            for site, size, received in zip(self.sites, self.sizes, self.received, strict=True)
        ]

    # -- a round

    def prepare(
        self, round_number: int, clients: Sequence[int], losses: Losses
    ) -> tuple[Downloads, dict[int, Tensors]]:
        """The downloads of some sites, and the tensors with which each of them begins the round."""
        downloads = self.server.prepare(round_number, clients, losses)
        tensors = dict(downloads.items())
        sent = {k: {name: rows[row] for name, rows in tensors.items()} for row, k in enumerate(clients)}
        return downloads, sent if downloads.mixing is not None else {}

    def check(self, update: Tensors, round_number: int) -> None:
        """Raises BadMessage for ciphertexts that are not of this round, and a fingerprint that no images can have."""
        if self.blind is not None:
            try:
                self.blind.check(update[CIPHERTEXTS], round_number)
            except BadCiphertext as error:
                raise BadMessage(str(error)) from None
        method = self.method
        if self.server.sends_fingerprints and method.looks_at_images and not method.plausible(update[FINGERPRINT]):
            raise BadMessage("its fingerprint has a variance that no images have")

    def keep(self, k: int, update: Tensors, sent: Tensors) -> Load:
        """Keeps site k's update, which began with the tensors in `sent`; returns the size of the update."""
        for name, start in self.server.start.items():
            start[k] = sent.get(name, start[k])
        return self.server.keep([k], ((name, tensor[None]) for name, tensor in update.items()))[k]

    def formula(self, update: Tensors) -> Cost:
        """The paper's cost formula for a site, without the classifier, which would reveal its number of classes."""
        tensors = self.body | {name: tensor for name, tensor in update.items() if name in self.body}
        return self.method.card.cost(self.method, tensors, {name: self.roles[name] for name in tensors})

    def own(self, k: int, names: Iterable[str]) -> Tensors:
        """Site k's tensors as last received, for those of these names that are kept here."""
        return {name: self.server.stack[name][k] for name in names if name in self.server.stack}

    # -- trust

    def strike(self, k: int) -> bool:
        """Counts a bad update; returns whether the site is quarantined."""
        self.strikes[k] += 1
        if self.strikes[k] >= STRIKES:
            self.set_aside(k)
        return bool(self.aside[k])

    def set_aside(self, k: int) -> None:
        """Quarantines a site: it gets no requests, and its tensors are sent to no other site."""
        self.aside[k], self.received[k] = True, False

    def trust_all_but(self, aside: Collection[str]) -> None:
        """Quarantines these sites and no others."""
        for k, site in enumerate(self.sites):
            if site in aside:
                self.set_aside(k)
            elif self.aside[k]:
                self.readmit(k)

    def readmit(self, k: int) -> None:
        """Ends the quarantine of a site."""
        self.aside[k], self.strikes[k] = False, 0

"""What the coordinator knows from round to round: what travels, who sent it, and who is trusted. Nothing else."""

from collections.abc import Callable, Sequence

import torch

from factorized_fl.config import Config
from factorized_fl.core.roles import roles
from factorized_fl.methods import Cost, Mixing, Server, Tensors
from factorized_fl.methods.fingerprints import plausible
from factorized_fl.silo.checks import FINGERPRINT
from factorized_fl.silo.messages import BadMessage
from factorized_fl.simulate.build import initial_model, travels
from factorized_fl.simulate.rounds import mixed_rows, mixing_rng

STRIKES = 3  # bad updates in a row after which a site is set aside


class Memory:
    """Shared tensors as every site last sent them, and the roster; a checkpoint holds all of it."""

    def __init__(self, config: Config, sites: Sequence[str]) -> None:
        self.config, self.method = config, config.build_method()
        count = len(sites)
        # The body of a model does not depend on the number of classes, and the rest never comes here.
        model = initial_model(config, 2, config.channels, labels_agree=False)
        first = model.state_dict()
        self.roles = roles(model)
        self.body = {name: first[name] for name, role in self.roles.items() if not role.head}
        shared = [name for name, role in self.roles.items() if travels(self.method, role, labels_agree=False)]
        self.stack: Tensors = {name: torch.stack([first[name]] * count) for name in shared}
        # Where each site's last training began, for methods that look at it.
        self.start: Tensors = {name: t.clone() for name, t in self.stack.items()} if self.method.needs_start else {}
        vector = self.method.fingerprint(first, self.roles) if shared else None
        sent = vector is not None and not self.method.fingerprint_is_shared
        self.vectors = torch.stack([vector] * count) if vector is not None and sent else None
        self.sizes = torch.ones(count, dtype=torch.float64)
        self.received = torch.zeros(count, dtype=torch.bool)
        self.strikes = torch.zeros(count, dtype=torch.int64)
        self.aside = torch.zeros(count, dtype=torch.bool)
        self.method_state: Tensors = {}

    @property
    def tensors(self) -> Tensors:
        """The checkpoint."""
        known = {"received": self.received, "sizes": self.sizes, "strikes": self.strikes, "aside": self.aside}
        if self.vectors is not None:
            known["vectors"] = self.vectors
        return {
            **known,
            **{f"stack/{name}": tensor for name, tensor in self.stack.items()},
            **{f"start/{name}": tensor for name, tensor in self.start.items()},
            **{f"method/{name}": tensor for name, tensor in self.method_state.items()},
        }

    def load(self, tensors: Tensors) -> None:
        """Go back to a checkpoint."""
        for name, tensor in self.tensors.items():
            if not name.startswith("method/"):
                tensor.copy_(tensors[name])
        self.method_state = {
            name.removeprefix("method/"): tensor for name, tensor in tensors.items() if name.startswith("method/")
        }

    def learn_size(self, k: int, declared: int | None) -> str:
        """How many training images a site has counts as it said before it first answered: they cannot change.

        Answers what is to be noted of a site that says otherwise.
        """
        before = int(self.sizes[k])
        if declared is None or declared == before:
            return ""
        if self.received[k]:
            return f"says that it has {declared} training images; it counts with {before}, as before"
        self.sizes[k] = declared
        return ""

    def images(self, k: int, declared: int | None) -> int | None:
        """How many training images a site counts with, or says that it has; nothing if it never said so."""
        kept = int(self.sizes[k])
        if self.received[k] or (declared is None and kept > 1):  # 1 may also be that of who was never heard
            return kept
        return declared

    def fingerprints(self) -> torch.Tensor | None:
        """The vectors that sites are matched by, [K, D]."""
        if self.vectors is not None or not self.method.fingerprint_is_shared:
            return self.vectors
        rows = [{name: stacked[k] for name, stacked in self.stack.items()} for k in range(len(self.sizes))]
        known = [self.method.fingerprint(row, self.roles) for row in rows]
        return torch.stack([vector for vector in known if vector is not None])

    def mix(
        self, round: int, clients: Sequence[int], losses: Callable[[int, Tensors], list[float]]
    ) -> tuple[Mixing | None, dict[int, Tensors]]:
        """What each of the clients is to begin the round with; nothing before anybody has answered."""
        if not clients or not self.stack or not self.received.any():
            return None, {}
        server = Server(
            round=round,
            clients=clients,
            stack=self.stack,
            start=self.start,
            fingerprints=self.fingerprints(),
            sizes=self.sizes,
            received=self.received,
            state=self.method_state,
            rng=mixing_rng(self.config, round),
            validation_losses=losses,
        )
        mixing = self.method.mix(server)
        self.method_state = mixing.state
        sent: dict[int, Tensors] = {k: {} for k in clients}
        for name, rows in mixed_rows(mixing, server):
            for row, k in enumerate(clients):
                back = mixing.revert is not None and bool(mixing.revert[k])
                sent[k][name] = self.start[name][k].clone() if back else rows[row]
        return mixing, sent

    def expected(self, k: int, sent: Tensors) -> Tensors:
        """What site k's upload is compared with: what it began with, or its last one."""
        expected = {name: sent.get(name, stacked[k]) for name, stacked in self.stack.items()}
        if self.vectors is not None:
            expected[FINGERPRINT] = self.vectors[k]
        return expected

    def check(self, sent: Tensors) -> None:
        """Refuse a fingerprint of images that no images have."""
        if self.vectors is not None and self.method.looks_at_images and not plausible(sent[FINGERPRINT]):
            raise BadMessage("its fingerprint has a variance that no images have")

    def formula(self, sent: Tensors) -> Cost:
        """The paper's cost of a site that sent these tensors, without the classifier: that would tell its classes."""
        tensors = self.body | {name: tensor for name, tensor in sent.items() if name in self.body}
        return self.method.formula(tensors, {name: self.roles[name] for name in tensors})

    def keep(self, k: int, tensors: Tensors, sent: Tensors) -> None:
        """Site k has sent these tensors after beginning with what it was sent."""
        for name, stacked in self.stack.items():
            if name in self.start:
                self.start[name][k] = sent.get(name, self.start[name][k])
            stacked[k] = tensors[name]
        if self.vectors is not None:
            self.vectors[k] = tensors[FINGERPRINT]
        self.received[k] = True

    def strike(self, k: int) -> bool:
        """Count a bad update; says whether the site is set aside for it. Nobody is then given its tensors."""
        self.strikes[k] += 1
        if self.strikes[k] >= STRIKES:
            self.set_aside(k)
        return bool(self.aside[k])

    def set_aside(self, k: int) -> None:
        """Ask a site for nothing, and give nobody what it sent."""
        self.aside[k], self.received[k] = True, False

    def trust_all_but(self, aside: set[int]) -> None:
        """Set these aside and nobody else."""
        for k in range(len(self.aside)):
            if k in aside:
                self.set_aside(k)
            elif self.aside[k]:
                self.readmit(k)

    def readmit(self, k: int) -> None:
        """Trust a site again."""
        self.aside[k], self.strikes[k] = False, 0

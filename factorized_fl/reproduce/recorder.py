"""What a cell keeps of a run besides accuracy and bytes: how alike u and v are between clients, how full mu is."""

import json
from collections.abc import Sequence
from pathlib import Path

import torch

from factorized_fl.federation.build import Federation
from factorized_fl.federation.mixing import cosine
from factorized_fl.federation.rundir import Record, write_atomically
from factorized_fl.methods import Roles


class FactorRecorder:
    """After every round of a factorised federation, a line with the cosines of the clients' u and v before the
    classifier (paper, figure 5 a-e) and the number of entries of mu that count as not zero."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.federation: Federation | None = None

    def started(self, federation: Federation, done: int) -> None:
        """Forget rounds that will be run again."""
        self.federation = federation
        kept = [record for record in read_lines(self.path) if record["round"] <= done]
        write_atomically(self.path, "".join(json.dumps(record) + "\n" for record in kept).encode())

    def client_done(self, round: int, client: int) -> None:
        """Nothing to note."""

    def round_done(self, round: int, records: Sequence[Record]) -> None:
        """Note the round."""
        assert self.federation is not None
        if noted := factors(self.federation):
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"round": round, **noted}) + "\n")


@torch.no_grad()
def factors(federation: Federation) -> Record:
    """Cosines of u and v of the last layer before the classifier, and mu's entries; nothing for dense models."""
    names = last_body_factors(federation.roles)
    if len(names) < 2:
        return {}
    noted: Record = {}
    for kind, name in names.items():
        # Enough digits to rank clients by, though all cosines are close to 1.
        noted[kind] = [[round(value, 9) for value in row] for row in _cosines(federation, name).tolist()]
    first = federation.state.client(0)
    noted["numbers"] = dict.fromkeys(("u", "v", "mu"), 0)
    for name, role in federation.roles.items():
        if role.kind in noted["numbers"]:
            noted["numbers"][role.kind] += first[name].numel()
    threshold = getattr(federation.method, "sparsity", 0.0)
    mu = [name for name, role in federation.roles.items() if role.kind == "mu"]
    if mu:
        clients = [federation.state.client(k) for k in range(len(federation.state))]
        # Below the threshold an entry counts as zero, and with a threshold of zero only zero does.
        counts = [sum((client[n].abs() >= max(threshold, 1e-38)).sum() for n in mu) for client in clients]
        noted["mu_kept"] = torch.stack([torch.as_tensor(count) for count in counts]).tolist()
    return noted


def last_body_factors(roles: Roles) -> dict[str, str]:
    """Names of u and v of the last factorised layer before the classifier."""
    return {role.kind: name for name, role in roles.items() if role.kind in ("u", "v") and not role.head}


def _cosines(federation: Federation, name: str) -> torch.Tensor:
    return cosine(federation.state.common[name].flatten(1))


def read_lines(path: Path) -> list[Record]:
    """The whole lines of a file of JSON lines; none if there is no file."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if line[-1] == "\n"]

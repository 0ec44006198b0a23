"""The size of a model, by the role of its tensors."""

from collections import Counter
from dataclasses import dataclass

from torch import nn

from factorized_fl.core.roles import canonical_names, roles
from factorized_fl.nn.factorized import factored

_KINDS = ("u", "v", "mu", "body", "bias", "norm", "stat")


@dataclass(frozen=True)
class Description:
    """Numbers of entries in a model's tensors: `total` is the sum of u, v, mu, body, bias, norm, stat and other.

    These include the classifier's tensors, which `head` counts once more together. `mu_surviving` counts the entries
    of mu that reach the threshold. Counters such as num_batches_tracked are left out.
    """

    u: int
    v: int
    mu: int
    mu_surviving: int
    body: int
    bias: int
    norm: int
    stat: int
    other: int
    head: int
    total: int

    @property
    def share(self) -> float:
        """The share of mu that survives pruning, and 1 for a model without mu."""
        return self.mu_surviving / self.mu if self.mu else 1.0

    def __str__(self) -> str:
        rows = [(kind, getattr(self, kind), "") for kind in (*_KINDS, "other")]
        if self.mu:
            rows.insert(3, ("  surviving", self.mu_surviving, f"{self.share:.1%} of mu"))
        rows += [("total", self.total, ""), ("  of it head", self.head, "")]
        shown = [row for row in rows if row[1] or row[2] or row[0] == "total"]
        width = len(f"{self.total:,}")
        return "\n".join(f"{name:<13}{count:>{width},}  {note}".rstrip() for name, count, note in shown)


def describe(model: nn.Module, head: str | None = None) -> Description:
    """Count the numbers of a model's tensors by role; a tensor under several names counts once.

    Args:
        model: any module, factorised or not.
        head: the qualified name of the classifier; by default the module `head`, or else the last layer.

    Returns:
        The counts, which print as a table.

    Raises:
        UserError: if the model has no layer of that name.
    """
    state, canonical = model.state_dict(), canonical_names(model)
    counts: Counter[str] = Counter()
    in_head = 0
    for name, role in roles(model, head).items():
        tensor = state[name]
        if name != canonical[name] or (role.kind == "stat" and tensor.ndim == 0):
            continue
        counts[role.kind] += tensor.numel()
        in_head += tensor.numel() * role.head

    surviving = sum(int((~part.pruned(mu.detach())).sum()) for part, mu in factored(model) if part.has_mu)
    known = {kind: counts.pop(kind, 0) for kind in _KINDS}
    other = counts.total()
    return Description(**known, mu_surviving=surviving, other=other, head=in_head, total=sum(known.values()) + other)

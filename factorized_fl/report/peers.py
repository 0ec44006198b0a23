"""The sentence of the page on effective peers: how many other clients a download mixes."""

from factorized_fl.results.reading import RunFiles

_ALMOST_ONE = 1.5  # effective peers below which one other client dominates


def peers_sentence(run: RunFiles) -> str:
    """Return the range of effective peers in the last round and the fewest in any; empty if the run has none."""
    found = [(line["effective_peers"], line["round"], line["client"]) for line in run.metrics]
    shared = [(peers, at, k) for peers, at, k in found if peers]
    if not any(peers is not None for peers, _, _ in found):
        return ""
    if not shared:
        return "No client received tensors of another client."
    last = max(at for _, at, _ in shared)
    now = [peers for peers, at, _ in shared if at == last]
    fewest, at, k = min((peers or 0.0, at, k) for peers, at, k in shared)
    low, high = f"{min(now):.1f}", f"{max(now):.1f}"
    span = low if low == high else f"{low} to {high}"
    text = (
        f"Effective peers of a client (1 / sum of squared weights of the other clients): {span} in round {last}, "
        f"fewest {fewest:.1f} for {run.clients[k]['name']} in round {at}."
    )
    if fewest < _ALMOST_ONE:
        text += " Near 1, a client receives the tensors of one other client nearly unmixed: min_peers prevents that."
    return text

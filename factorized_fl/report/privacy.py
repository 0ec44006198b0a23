"""The sentence of the page on differential privacy: the budget, and what clients have spent of it."""

from factorized_fl.results.reading import RunFiles


def privacy_sentence(run: RunFiles) -> str:
    """Return the range of epsilon spent by the clients beside the budget; empty without differential privacy."""
    spent = {line["client"]: line["epsilon"] for line in run.metrics if "epsilon" in line}
    if not spent:
        return ""
    low, high = f"{min(spent.values()):.2f}", f"{max(spent.values()):.2f}"
    budget, delta = run.config.get("privacy_epsilon"), run.config.get("privacy_delta")
    span = low if low == high else f"{low} to {high}"
    return (
        f"Differential privacy of each training example: clients spent epsilon {span} of {budget:g}, with delta "
        f"{delta:g}. Test images and choices of options are not covered."
    )

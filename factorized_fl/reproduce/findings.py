"""What came out, in plain sentences with their numbers, before any table."""

from collections.abc import Iterator
from statistics import fmean

from factorized_fl.reproduce.claims import SUPPOSED, VERDICTS, judge
from factorized_fl.reproduce.collection import Collection, Key, difference, mean, total_bytes
from factorized_fl.reproduce.published import published_mean

ALONE, AVERAGED, OURS = (("domains", "domains", row) for row in ("stand-alone", "fedavg", "factorized-fl"))
RELEASED = ("similarity", "similarity", "factorized-fl+released")


def findings(found: Collection) -> list[str]:
    """The sentences whose cells were all run, as a list."""
    told = [sentence for each in (_domains, _matching, _labels, _peers) for sentence in each(found)]
    return ["\n".join(f"- {sentence}" for sentence in told)] if told else []


def _means(found: Collection, *keys: Key) -> list[str]:
    """The means of some cells in percent, or none if one of them was not run."""
    means = [mean(found.of(*key)) for key in keys]
    return [f"{one.value:.2f}" for one in means if one] if all(means) else []


def _domains(found: Collection) -> Iterator[str]:
    bytes_sent = [total_bytes(found.of(*key)) for key in (OURS, AVERAGED)]
    gap = difference(found.of(*OURS), found.of(*ALONE), between_seeds=found.between_seeds)
    if (ours := _means(found, OURS, ALONE, AVERAGED)) and gap and bytes_sent[0] and bytes_sent[1]:
        papers = [f"{paper[0]:.2f}" for key in (OURS, ALONE, AVERAGED) if (paper := published_mean(*key))]
        yield (
            f"On the five domains Factorized-FL has {ours[0]}%, Stand-Alone {ours[1]}% and FedAvg {ours[2]}% (paper: "
            f"{', '.join(papers)}), and it sends {bytes_sent[0] / bytes_sent[1]:.1%} of FedAvg's bytes. Over "
            f"Stand-Alone that is {gap}: {'a' if gap.word == 'more' else 'no'} gain beyond two standard errors."
        )


def _matching(found: Collection) -> Iterator[str]:
    others = [("ablation", "ablation", row) for row in ("random-matching", "worst-matching")]
    weights = [[result.record.get("mixing", {}).get("own") for result in found.of(*key)] for key in (OURS, RELEASED)]
    if not (means := _means(found, OURS, *others)) or not all(runs and all(runs) for runs in weights):
        return
    printed, released = (fmean(run[-1] for run in runs) for runs in weights)
    (control,) = (one for one in judge(found, SUPPOSED) if one.claim.name == "gain-from-others")
    yield (
        f"Matched by similarity its clients reach {means[0]}%, at random {means[1]}%, with the least similar "
        f"{means[2]}%. In the last round a client gives {printed:.3f} of the weight to itself, with all departures of "
        f"the authors' code {released:.3f}; a plain average would be 0.050, training alone 1. That clients gain from "
        f"each other, not only from factorised weights, {VERDICTS[control.verdict][0]}."
    )


def _labels(found: Collection) -> Iterator[str]:
    settings = ("permuted-iid", "permuted-non-iid")
    rows = ("factorized-fl", "stand-alone", "fedavg")
    keys = [("label-cifar10", setting, row) for row in rows for setting in settings]
    keys += [("departures", setting, "factorized-fl+released") for setting in settings]
    if means := _means(found, *keys):
        ours, alone, averaged, released = (" and ".join(means[i : i + 2]) for i in range(0, 8, 2))
        yield (
            f"With permuted labels, CIFAR-10 in IID and non-IID shares, Factorized-FL has {ours}%, Stand-Alone "
            f"{alone}%, FedAvg {averaged}%; with all departures of the authors' code Factorized-FL has {released}%."
        )


def _peers(found: Collection) -> Iterator[str]:
    keys = [("beyond", "domains", row) for row in ("factorized-peers", "stand-alone+settled")]
    if means := _means(found, *keys):
        yield (
            "On the five domains our own Factorized-Peers, which finds out who belongs together, has "
            f"{means[0]}%, Stand-Alone with its statistics settled as well {means[1]}% ([more](#beyond-the-paper))."
        )

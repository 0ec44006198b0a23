"""The tables of docs/privacy.md, from the files under results/privacy/.

    python -m benchmarks.privacy_tables

Writes each table between its lines `<!-- NAME: written by ... -->` and `<!-- end of NAME -->`. A test compares the page
with what this command writes.
"""

import json
import re
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import scipy.stats

from factorized_fl.audit.membership import COORDINATOR, MODEL, PEER
from factorized_fl.methods import METHODS

RESULTS, PAGE = Path("results/privacy"), Path("docs/privacy.md")
_AREA = "area under the ROC curve"
_OTHER_ATTACKS = {
    "sender": "the sender of an update without a name",
    "style": "the domain of an update",
    "picture, one step": "picture from an update: one step on one or two pictures",
    "picture, a round": "picture from an update: the first round as it was",
    "style, from the fingerprint": "fingerprint: domain",
    "more classes": "fingerprint: number of classes above the middle",
    "more images": "fingerprint: number of images above the middle",
}
_PAIRS = {
    "plain_and_encrypted": "plain, and encrypted",
    "plain_and_plain_with_64_bit_sums": "plain, and plain with sums in 64 bits",
    "plain_with_64_bit_sums_and_encrypted": "plain with sums in 64 bits, and encrypted",
    "plain_and_encrypted_in_64_bits": "plain, and encrypted, all tensors in 64 bits",
}
_PARTS = {"encrypt": "encrypting", "mix": "sums", "decrypt": "decrypting"}


def read(name: str) -> dict[str, Any]:
    """Return the content of a results file."""
    found: dict[str, Any] = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    return found


def title(method: str) -> str:
    return METHODS[method].card.title


def table(*rows: list[str]) -> str:
    """Return a table in Markdown; the first row is its heading."""
    heading, *others = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([heading, "|---" * len(rows[0]) + "|", *others])


def audited(content: dict[str, Any]) -> Iterator[tuple[list[str], list[dict[str, Any]]]]:
    """Yield the first two cells of the row of each audited run, and its findings."""
    for run in content["runs"]:
        budget = f"epsilon {run['epsilon']:g}" if run["epsilon"] else "none"
        yield [title(run["method"]), budget], [{**found, "accuracy": run["accuracy"]} for found in run["findings"]]


def membership() -> str:
    """Return the table of membership inference: the area under the ROC curve of each view, with its interval."""
    rows = [["method", "privacy", "accuracy", COORDINATOR, PEER, MODEL]]
    for start, findings in audited(read("audit.json")):
        areas = {f["view"]: f for f in findings if (f["attack"], f["measure"]) == ("membership", _AREA)}
        cells = [_interval(areas[view]) if view in areas else "-" for view in (COORDINATOR, PEER, MODEL)]
        rows.append([*start, f"{findings[0]['accuracy']:.1%}", *cells])
    return table(*rows)


def updates() -> str:
    """Return the table of the other attacks on what the coordinator sees, with intervals and chance."""
    runs = list(audited(read("audit.json")))
    rows = [["method", "privacy", *_OTHER_ATTACKS]]
    for start, findings in runs:
        known = {f["attack"]: f for f in findings}
        attacks = [known.get(attack) for attack in _OTHER_ATTACKS.values()]
        cells = [_interval(found) if found else "-" for found in attacks]
        rows.append([*start, *cells])
    seen = {f["attack"]: f for _, findings in runs for f in findings}
    chances = [_form(seen[attack]).format(seen[attack]["chance"]) for attack in _OTHER_ATTACKS.values()]
    return table(*rows, ["by chance", "", *chances])


def _form(found: dict[str, Any]) -> str:
    return "{:.2f}" if found["measure"] == _AREA else "{:.0%}"


def _interval(found: dict[str, Any]) -> str:
    value, low, high = (_form(found).format(found[name]) for name in ("value", "low", "high"))
    return f"{value} ({low} to {high})"


def robust() -> str:
    """Return the mean accuracy of the honest clients for each attack, by the robust aggregation, over all seeds."""
    content = read("robust.json")
    attacks = list(dict.fromkeys(row["attack"] for row in content["rows"]))
    rows = [["method", "`robust`", *("honest" if attack == "none" else attack for attack in attacks)]]
    by_key = {(row["method"], row["robust"], row["attack"]): row["each"] for row in content["rows"]}
    for method, kind in dict.fromkeys((method, kind) for method, kind, _ in by_key):
        cells = []
        for attack in attacks:
            each = by_key[method, kind, attack]
            cells.append(f"{statistics.fmean(each):.1%} ({min(each):.1%} to {max(each):.1%})")
        rows.append([title(method), kind, *cells])
    return table(*rows)


def private_pacs() -> str:
    """Return the accuracy of each method at each epsilon, with its interval, beside Stand-Alone."""
    content = read("dp-pacs.json")
    rows = [["epsilon", "method", "accuracy", "points over Stand-Alone", "epsilon spent by a client"]]
    for epsilon, runs in content["epsilon"].items():
        for run in runs:
            spent = " to ".join(f"{value:.2f}" for value in run["epsilon_spent"])
            mean, half = statistics.fmean(run["by_seed"]), _half_of_interval(run["by_seed"])
            over = _points(run["alone"]) if run["alone"] else "-"
            rows.append([epsilon, title(run["method"]), f"{mean:.1%} ± {half:.1%}", over, spent])
    return table(*rows)


def encryption() -> str:
    """Return how much final metrics and single losses differ between runs with and without encryption."""
    content = read("encryption.json")
    rows = [
        ["runs", "final mean accuracy", "final mean loss differs by", "a client's loss in a round differs by at most"]
    ]
    for name, words in _PAIRS.items():
        pair = content[name]
        accuracy = " and ".join(f"{value:.2%}" for value in pair["final_accuracy"])
        differences = (pair["difference_of_final_loss"], pair["largest_difference_of_losses"])
        rows.append([words, accuracy, *(f"{value:.1e}" for value in differences)])
    return table(*rows)


def encryption_time() -> str:
    """Return the seconds of rounds with and without encryption, and of the parts of encryption, by device."""
    rows = [["device", "CPU seconds, plain", "encrypted", "ratio", *_PARTS.values(), "share of the rest of the round"]]
    for device, found in read("encryption-time.json").items():
        cpu = [statistics.median(found[f"cpu_seconds_{name}"]) for name in ("plain", "encrypted")]
        seconds = [f"{value:.1f} s" for value in cpu]
        parts = [f"{found['seconds_by_part'][f'{part}_seconds']:.2f} s" for part in _PARTS]
        share = f"{found['encryption_over_rest_of_round']:.1%}"
        rows.append([device, *seconds, f"{found['ratio_of_cpu_medians']:.3f}", *parts, share])
    return table(*rows)


def _points(effect: dict[str, Any]) -> str:
    mean, low, high = (f"{100 * effect[name]:+.1f}" for name in ("mean", "low", "high"))
    return f"{mean} ({low} to {high})"


def _half_of_interval(values: list[float]) -> float:
    """Return half the width of the 95% interval of a mean, by Student's distribution."""
    quantile = float(scipy.stats.t.ppf(0.975, len(values) - 1))
    return quantile * statistics.stdev(values) / len(values) ** 0.5


TABLES = {
    "encryption": encryption,
    "encryption-time": encryption_time,
    "membership": membership,
    "updates": updates,
    "robust": robust,
    "private-pacs": private_pacs,
}


def page(text: str) -> str:
    """Return the page with all its tables replaced."""
    for name, write in TABLES.items():
        begin = f"<!-- {name}: written by `python -m benchmarks.privacy_tables` -->\n"
        pattern = re.escape(begin) + ".*?" + re.escape(f"<!-- end of {name} -->")
        assert len(re.findall(pattern, text, re.DOTALL)) == 1, f"{PAGE} has no place for {name}"
        whole = f"{begin}{write()}\n<!-- end of {name} -->"
        text = re.sub(pattern, lambda _, whole=whole: whole, text, flags=re.DOTALL)
    return text


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")

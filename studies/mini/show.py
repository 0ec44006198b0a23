"""The generated parts of docs/mini.md: answers from the benchmark's results, and the study of options."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from factorized_fl.bench.differences import ALONE, Gap, Results, control_entry, judge, read_results
from factorized_fl.bench.findings import standing
from factorized_fl.bench.suites import read_suites
from factorized_fl.bench.words import counted, entry_title, in_points, listed, table
from factorized_fl.results.rundir import Record
from factorized_fl.results.schema import KINDS
from studies.mini.options import FILE, OPTIONS, SEEDS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "mini.md"
Pair = tuple[str, str]

_CONTROLLED = ("fedavg", "factorized-fedavg", "factorized-fl-beta", "factorized-fl", "factorized-peers")
_GROUPS, _PEERS_IN_GROUPS = "fedavg:oracle=groups", "factorized-peers:oracle=groups"

# For each question the comparisons that answer it: an entry of the suite, and the entry that it is compared with.
QUESTIONS: Mapping[str, Sequence[Pair]] = {
    "Does aggregation help?": [(entry, control_entry(entry)) for entry in _CONTROLLED],
    "Does matching help?": [
        (_GROUPS, "fedavg"),
        ("clustered-fl", "fedavg"),
        (_PEERS_IN_GROUPS, "factorized-fedavg"),
        ("factorized-fl-beta", "factorized-fedavg"),
        ("factorized-peers", "factorized-fedavg"),
    ],
    "Does factorisation help beyond grouping?": [
        (control_entry("factorized-fl"), ALONE),
        ("factorized-fedavg", "fedavg"),
        (_PEERS_IN_GROUPS, _GROUPS),
        ("factorized-peers", _GROUPS),
    ],
}


def parts() -> dict[str, str]:
    """Return the generated parts of the page by name."""
    results = read_results(read_suites()["mini-domains"], ROOT / "results" / "bench")
    options = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else None
    return {"answers": "\n".join(_answers(results)), "options": "\n".join(_options(options))}


def _answers(results: Results) -> Iterable[str]:
    pairs = [pair for of in QUESTIONS.values() for pair in of]
    judged = {kind: judge({pair: results.difference(*pair, kind) for pair in pairs}) for kind in reversed(KINDS)}
    for question, own in QUESTIONS.items():
        yield f"- **{question}** {' '.join(_decided(kind, gaps, own) for kind, gaps in judged.items())}"
        if control_entry(own[0][0]) == own[0][1]:
            found = standing(results.over_controls(results.methods))
            yield f"  Over their controls, recalibrated and corrected for each other, {found}"
    rows = []
    for question, own in QUESTIONS.items():
        for pair in own:
            rows.append([question, _named(pair), *(in_points(gaps.get(pair)) for gaps in judged.values())])
            question = ""
    yield f"\n{table(('question', 'comparison', *judged), rows)}"


def _named(pair: Pair) -> str:
    ours, theirs = pair
    own = theirs == control_entry(ours) and theirs != ALONE
    return f"{entry_title(ours)} over {'its control' if own else entry_title(theirs)}"


def _decided(kind: str, gaps: Mapping[Pair, Gap], pairs: Sequence[Pair]) -> str:
    """Return which comparisons of a question are decided."""
    known = [pair for pair in pairs if pair in gaps]
    decided = [f"{_named(pair)} {in_points(gaps[pair])}" for pair in known if gaps[pair].decided]
    if not decided:
        return f"{kind.capitalize()}: none of {counted(len(known), 'comparison')} is decided."
    are = "is" if len(decided) == 1 else "are"
    return (
        f"{kind.capitalize()}: {len(decided)} of {counted(len(known), 'comparison')} {are} decided, {listed(decided)}."
    )


def _options(found: Record | None) -> Iterable[str]:
    """Yield the accuracy on validation images for each choice of Factorized-FL's options, the best first."""
    if found is None:
        yield f"It has not been run: {len(OPTIONS) * len(SEEDS)} runs."
        return
    rows = []
    for choice in found["choices"]:
        own = ", ".join(f"{name} = {value}" for name, value in choice["settings"].items())
        over = [f"{100 * choice['mean']:+z.1f} ± {50 * (choice['high'] - choice['low']):.1f}" if "p" in choice else "-"]
        over += [f"{choice['p']:.2f}" if "p" in choice else "-"]
        means = [f"{100 * fmean(choice[part]):.1f}" for part in ("validation", "test")]
        rows.append([own or "defaults", listed([str(seed) for seed in choice["seeds"]]), *means, *over])
    heads = ("options of Factorized-FL", "seeds", "validation", "test", "over the defaults", "p, by Holm")
    yield table(heads, rows).rstrip()


def shown(text: str) -> str:
    """Return the page's text with its parts generated again."""
    for name, part in parts().items():
        begin, end = f"<!-- {name}: written by `python -m studies.mini show` -->\n", f"<!-- end of {name} -->"
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}\n{part.rstrip()}\n\n{end}{rest.partition(end)[2]}"
    return text


def write_page() -> None:
    """Write the generated parts into docs/mini.md."""
    PAGE.write_text(shown(PAGE.read_text(encoding="utf-8")), encoding="utf-8")

"""docs/reproduction.md, from the results alone: the same results give the same bytes."""

import statistics
from collections.abc import Sequence
from pathlib import Path

from factorized_fl.core.errors import UserError
from factorized_fl.core.files import write_atomically
from factorized_fl.report.tables import size
from factorized_fl.reproduce import prose
from factorized_fl.reproduce.beyond import OWN, helped, matching_bytes
from factorized_fl.reproduce.cells import Result
from factorized_fl.reproduce.claims import SUPPOSED, judge, judge_reconstructed
from factorized_fl.reproduce.collection import Collection, Key, formula_gigabytes, model_millions
from factorized_fl.reproduce.differences import differences
from factorized_fl.reproduce.figures import drawings
from factorized_fl.reproduce.ledger import checks, in_short, verdicts
from factorized_fl.reproduce.markdown import entry, pivot, table
from factorized_fl.reproduce.names import title
from factorized_fl.reproduce.published import AVERAGE, published
from factorized_fl.reproduce.readme import with_short_table
from factorized_fl.reproduce.rows import ALL_EPOCHS, Row, rows_of
from factorized_fl.reproduce.studies import STUDIES
from factorized_fl.results.rundir import Record

DOCUMENT = "reproduction.md"
FIGURES = "figures"
UNMATCHED = ("fedavg", "factorized-fedavg", "without-mu")  # of the ablations, those that average over all


def document(found: Collection) -> str:
    """The whole page."""
    judged, rejudged, supposed = judge(found), judge_reconstructed(found), judge(found, SUPPOSED)
    parts = [
        prose.INTRODUCTION,
        *in_short(found, judged, rejudged),
        *verdicts(judged, supposed),
        prose.SETTING,
        _machines(found),
        "## Label heterogeneity (Table 1, top)",
        *_label(found, "label-cifar10", "### CIFAR-10"),
        *_label(found, "label-svhn", "### SVHN"),
        "## Domain heterogeneity (Table 1, bottom)",
        *_domains(found),
        "## Ablations (figure 8 g)",
        "The paper shows curves and prints no numbers.",
        _listing(rows_of("ablation", found)),
        *_below(found, "ablation", "ablation"),
        "## Similarity of u and v (figure 8 a-f)",
        prose.SIMILARITY,
        pivot(rows_of("similarity", found), title),
        *_weights(found),
        *_below(found, "similarity", "similarity"),
        "## Architectures (figure 8 h)",
        prose.ARCHITECTURES,
        pivot(rows_of("architectures", found), _kernel, transposed=True),
        *_below(found, "architectures"),
        "## Sparsity (figure 8 i and appendix)",
        prose.SPARSITY,
        pivot([row for row in rows_of("sparsity", found) if "epochs" in row.setting], str, transposed=True),
        *_sizes(found),
        "On the domains, accuracy and millions of parameters (the appendix shows a figure without numbers):",
        pivot([row for row in rows_of("sparsity", found) if "domains" in row.setting], title, transposed=True),
        *_below(found, "sparsity", "sparsity"),
        "## Heterogeneity of updates (figures 2 and 4)",
        prose.HETEROGENEITY,
        pivot(rows_of("heterogeneity", found), str),
        *_figures(found, "heterogeneity"),
        "## Beyond the paper",
        prose.BEYOND,
        pivot(rows_of("beyond", found), title, transposed=True),
        *_helped(found),
        *_matching(found),
        *_all_alike(found),
        *_below(found, "beyond", "peers"),
        *differences(found),
        *_below(found, "departures"),
        *_choices(found),
        *checks(found, judged, rejudged, supposed),
    ]
    return "\n\n".join(parts) + "\n"


def _listing(rows: Sequence[Row]) -> str:
    lines = [
        [
            title(row.method),
            entry(row),
            ", ".join(map(str, row.seeds)) or "-",
            "-" if row.bytes is None else size(row.bytes),
        ]
        for row in rows
    ]
    return table(("method", "accuracy, %", "seeds", "bytes sent"), lines)


def _kernel(method: str) -> str:
    return {"stand-alone": "regular", "mixed-layout": "I\\*F x O\\*F", "factorized-fl": "F\\*F x I\\*O"}[method]


def _below(found: Collection, what: str, *figures: str) -> list[str]:
    """What goes with a study's table: what has to be known of its runs and its methods, and its figures."""
    return [*_notes(found, what), *_remarks(found, what), *_figures(found, *figures)]


def _figures(found: Collection, *names: str) -> list[str]:
    ready = {drawing.name: drawing.caption for drawing in drawings(found)}
    return [f"![{ready[name]}]({FIGURES}/{name}.svg)\n\n*{ready[name]}*" for name in names if name in ready]


# -- sections


def _machines(found: Collection) -> str:
    """What ran where, and for how long; by name what did not run where most did."""
    results = [(key, result) for key, runs in found.cells.items() for result in runs]
    if not results:
        return "No cell has been run yet."
    seconds: dict[str, list[float]] = {}
    for _, result in results:
        seconds.setdefault(result.device, []).append(result.seconds)
    for record in found.heterogeneity:
        seconds.setdefault(record["environment"]["device"], []).append(record["seconds"])
    usual, *others = sorted(seconds, key=lambda device: (-len(seconds[device]), device))
    places = [f"{len(seconds[one])} on {one}, {sum(seconds[one]) / 3600:.1f} hours in all" for one in (usual, *others)]
    commits = sorted({result.record["commit"] or "unknown" for _, result in results})
    short = sum(key[0] == "choices" for key, _ in results)
    told = (
        f"So far {sum(map(len, seconds.values()))} runs, {short} of them short ones to choose by: {'; '.join(places)}. "
        f"They are from commit{'s' if len(commits) > 1 else ''} {', '.join(commits)}."
    )
    elsewhere = [_elsewhere(key, result) for key, result in results if result.device != usual]
    return f"{told} Not on {usual}: {'; '.join(elsewhere)}." if elsewhere else told


def _elsewhere(key: Key, result: Result) -> str:
    """A run that others might not be compared with, and what it computed in, which newer results say."""
    study, setting, row = key
    computed = result.record["environment"].get("convolutions")
    return f"{study}, {setting}, {title(row)}, seed {result.seed}" + (f" ({computed} convolutions)" if computed else "")


def _costs(row: Row) -> list[str]:
    paper = "-" if row.paper_gb is None else f"{row.paper_gb:g}"
    formula = "-" if row.formula_gb is None else f"{row.formula_gb:.2f}"
    sent = "-" if row.bytes is None else f"{row.bytes / 1e9:.2f}"
    return [paper, formula, sent]


def _label(found: Collection, what: str, heading: str) -> list[str]:
    rows = rows_of(what, found)
    settings = ("standard-iid", "permuted-iid", "standard-non-iid", "permuted-non-iid")
    by_place = {(row.method, row.setting): row for row in rows}
    methods = dict.fromkeys(row.method for row in rows)
    lines = [
        [title(m), *(entry(by_place[m, s]) for s in settings), *_costs(by_place[m, "permuted-iid"])] for m in methods
    ]
    headings = ("method", *settings, "paper, GB", "formula, GB", "serialised, GB")
    below = f"{_seeds(rows)} Costs are those of the permuted IID setting."
    return [
        heading,
        table(headings, lines),
        below,
        *_below(found, what, what),
    ]


def _seeds(rows: Sequence[Row]) -> str:
    """Which seeds the entries of a table have."""
    sets = sorted({row.seeds for row in rows if row.seeds}, key=len)
    words = [", ".join(map(str, seeds)) for seeds in sets]
    if len(words) < 2:
        return f"Seeds: {''.join(words) or 'none yet'}."
    return f"Seeds: {words[0]}; where ± stands {' or '.join(words[1:])}."


def _remarks(found: Collection, what: str) -> list[str]:
    """What a reader should know of methods that came down to simpler ones."""
    unsplit, listened = [], []
    for (study, setting, row), results in found.cells.items():
        mixed = [result.record["mixing"] for result in results if study == what and "mixing" in result.record]
        if mixed and row == "clustered-fl" and all(len(set(run["clusters"])) == 1 for run in mixed):
            unsplit.append(setting)
        if mixed and row.partition("+")[0] == "fedfomo":
            listened.append([title(row), setting, *_listened(mixed)])
    told = []
    if unsplit:
        places = ", ".join(unsplit)
        told.append(
            f"Clustered-FL, with the thresholds below, never split ({places}): there it is FedAvg with equal weights."
        )
    if listened:
        told += [prose.LISTENED, table(("method", "setting", "until round", "went back"), listened)]
    return told


def _listened(runs: Sequence[Record]) -> tuple[str, str]:
    """How far FedFOMO's clients trained by themselves; `own` and `reverted` begin with the second round."""
    last = max((index + 2 for run in runs for index, weight in enumerate(run["own"]) if weight < 1), default=1)
    rounds = max(len(run["own"]) + 1 for run in runs)
    shares = [share for run in runs for share in run.get("reverted", ())]
    return f"{last} of {rounds}", f"{statistics.fmean(shares):.0%}" if shares else "-"


def _domains(found: Collection) -> list[str]:
    rows = rows_of("domains", found)
    places = list(dict.fromkeys(row.setting for row in rows))
    by_place = {(row.method, row.setting): row for row in rows}
    lines = [
        [title(m), *(entry(by_place[m, place]) for place in places), *_costs(by_place[m, AVERAGE])]
        for m in dict.fromkeys(row.method for row in rows)
    ]
    return [
        table(("method", *places, "paper, GB", "formula, GB", "serialised, GB"), lines),
        f"{_seeds(rows)} The paper has no row for beta here. {_averages()}",
        *_below(found, "domains", "domains", "domains-clients"),
    ]


def _averages() -> str:
    """The paper's averages are not those of its columns, and ours are held against the former."""
    both = {}
    for method, row in published()["domains"].items():
        columns = [value[0] for place, value in row.items() if place not in (AVERAGE, "cost")]
        both[method] = (statistics.fmean(columns), row[AVERAGE][0])
    method = max(both, key=lambda name: abs(both[name][0] - both[name][1]))
    mean, printed = both[method]
    return (
        f"The paper's averages are not the means of its columns: for {title(method)} these have a mean of {mean:.2f} "
        f"and the paper prints {printed:.2f}. Ours stand beside what it prints."
    )


def _weights(found: Collection) -> list[str]:
    """How much clients listened to whom, for every way of matching."""
    lines = []
    for cell in (*STUDIES["ablation"].shown, *STUDIES["similarity"].own):
        mixed = [result.record["mixing"] for result in found.get(cell) if "mixing" in result.record]
        if cell.method not in UNMATCHED and mixed:
            own, others = ([run[name] for run in mixed] for name in ("own", "own_domain"))
            means = (statistics.fmean(map(statistics.fmean, own)), statistics.fmean(run[-1] for run in own))
            shares = (*means, statistics.fmean(map(statistics.fmean, others)))
            lines.append([title(cell.row), *(f"{share:.3f}" for share in shares)])
    headings = ("method", "to oneself", "to oneself, last round", "to others of one's domain")
    return [prose.WEIGHTS, table(headings, lines)] if lines else []


def _sizes(found: Collection) -> list[str]:
    """How far the sizes are from the published ones at most, with and without L1's gradient."""
    farthest: dict[tuple[str, str], float] = {}
    for row in rows_of("sparsity", found):
        if row.setting.startswith("millions, ") and row.paper and row.ours is not None:
            case = ("without" if "no gradient" in row.method else "with", row.setting.removeprefix("millions, "))
            farthest[case] = max(farthest.get(case, 0.0), abs(row.ours / row.paper - 1))
    if not farthest:
        return []
    cases = [f"{off:.1%} {word} L1's gradient after {epochs}" for (word, epochs), off in farthest.items()]
    told = f"The largest difference from a published size: {', '.join(cases)}."
    alone = found.of("departures", "resnet9-1fc", "factorized-fl+released")
    if alone and (millions := model_millions(alone[0])) is not None:
        told += f" With all departures, the layout too, a single client has {millions:.3f} M after {ALL_EPOCHS}."
    beta = formula_gigabytes(found.of("departures", "permuted-iid", "factorized-fl-beta+released"), "b")
    return [told if beta is None else f"{told} Our own beta with all departures counts {beta:.2f} GB (permuted IID)."]


def _notes(found: Collection, what: str) -> list[str]:
    """What has to be known about results of a study: what was noted when they were run."""
    noted: dict[str, dict[str, list[int]]] = {}
    everything = 0
    for (study, setting, row), results in found.cells.items():
        for result in results if study == what else []:
            everything += 1
            if "note" in result.record:
                cells = noted.setdefault(result.record["note"], {})
                cells.setdefault(f"{title(row)}, {setting}", []).append(result.seed)
    lines = []
    for note, cells in noted.items():
        named = [
            f"{cell}, seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}" for cell, seeds in cells.items()
        ]
        whole = sum(map(len, cells.values())) == everything
        lines.append(f"{'All runs' if whole else '; '.join(sorted(named))}: {note}.")
    return sorted(lines)


def _helped(found: Collection) -> list[str]:
    lines = [
        [
            f"{title(one.row)}, {one.setting}",
            one.over,
            ", ".join(map(str, one.seeds)),
            *(f"{points:+.2f}" for points in (one.mean, one.least_domain, one.least_client)),
            f"{one.harmed} of {one.clients}",
            f"{one.own_weight:.3f}",
        ]
        for one in helped(found)
    ]
    headings = ("of", "over", "seeds", "mean", "least domain", "least client", "lost over a point", "own-domain weight")
    return [prose.HELPED, table(headings, lines)] if lines else []


def _matching(found: Collection) -> list[str]:
    """Of our method and the published one, once both were run."""
    runs = (found.of("beyond", "domains", OWN), found.of("domains", "domains", "factorized-fl"))
    if not all(runs):
        return []
    ours, theirs = (size(matching_bytes(results[0])) for results in runs)
    return [f"To be matched, a client sends {ours} in a round; with {title('factorized-fl')} it sends {theirs}."]


def _all_alike(found: Collection) -> list[str]:
    """What our method does where nobody is more alike than others."""
    runs = found.of("beyond", "permuted-iid", OWN)
    if not runs:
        return []
    own = statistics.fmean(share for result in runs for share in result.record["mixing"]["own"])
    even = statistics.fmean(1 / len(result.domains) for result in runs)
    return [f"On CIFAR-10 in IID shares a client keeps {own:.3f} for itself; the mean of all would be {even:.3f}."]


def _choices(found: Collection) -> list[str]:
    if not found.choices:
        return [prose.CHOICES, "Nothing was chosen yet: all values are the presets'."]
    lines = []
    for made in found.choices:
        tried = "; ".join(f"{_options(one['options'])}: {100 * one['accuracy']:.2f}%" for one in made["tried"])
        where = "all" if made["presets"] is None else ", ".join(made["presets"])
        lines.append([", ".join(map(title, made["methods"])), _options(made["options"]), where, made["rule"], tried])
    return [prose.CHOICES, table(("method", "chosen", "for", "rule", "tried, on validation images"), lines)]


def _options(options: dict[str, float]) -> str:
    return ", ".join(f"{name} = {number:g}" for name, number in options.items())


# -- to disk


def write_documents(found: Collection, docs: Path, readme: Path) -> list[Path]:
    """Write the page, and the README's table if there is a README with markers."""
    if not docs.is_dir():
        raise UserError(f"There is no folder '{docs}' to write {DOCUMENT} to: give another with --docs.")
    write_atomically(docs / DOCUMENT, document(found).encode())
    written = [docs / DOCUMENT]
    if readme.is_file():
        text = readme.read_text(encoding="utf-8")
        renewed = with_short_table(text, found)
        if renewed != text:
            write_atomically(readme, renewed.encode())
            written.append(readme)
    return written

"""The transcription of the paper's numbers against the paper's source."""

import re
from collections.abc import Iterator

import pytest

from factorized_fl.methods import METHODS
from studies.paper.cells import read_data

TITLES = {METHODS[name].card.title: name for name in METHODS} | {r"Factorized-FL $\beta$": "factorized-fl-beta"}
SETTINGS = ("standard-iid", "permuted-iid", "standard-non-iid", "permuted-non-iid")
PLACES = ("household", "fruit-food", "tree-flower", "transport", "animals", "average")


def tables(paper: str) -> list[str]:
    start = paper.index(r"\label{tbl:permuted}")
    return re.findall(r"\\begin\{tabular\}(.*?)\\end\{tabular\}", paper[start:], re.DOTALL)


def rows(text: str) -> Iterator[tuple[str, list[list[float]], list[float]]]:
    """Method, accuracies with their spreads, costs of each row of Table 1."""
    for row in text.split(r"\\"):
        named = re.search(r"\\texttt\{([^}]*(?:\$[^$]*\$)?)\}", row)
        if named:
            rest = row[named.end() :]
            rest = re.sub(r"\\citep\{[^}]*\}", "", rest)
            pairs = re.findall(r"\{(\d+\.\d+)\}\s*\\scriptsize\s*\(\$\\pm\$\s*([\d.]+)\)", rest)
            bare = re.sub(r"\{\d+\.\d+\}\s*\\scriptsize\s*\(\$\\pm\$\s*[\d.]+\)", "", rest)
            yield (
                TITLES[named.group(1)],
                [[float(a), float(b)] for a, b in pairs],
                [float(cost) for cost in re.findall(r"\d+\.\d+", bare)],
            )


def label_table(text: str) -> dict[str, dict[str, list[float]]]:
    found = {}
    for method, accuracies, costs in rows(text):
        assert len(accuracies) == 4
        found[method] = dict(zip(SETTINGS, accuracies, strict=True))
        assert len(set(costs)) <= 1
        if costs:
            found[method]["cost"] = costs[0]
    return found


def parse(paper: str) -> dict:
    found = tables(paper)
    top, bottom = found[0], found[1]
    cifar10, svhn = re.split(r"\\multirow\{8\}\{\*\}\{SVHN\}", top)
    parsed = {"label-cifar10": label_table(cifar10), "label-svhn": label_table(svhn), "domains": {}}
    for method, accuracies, costs in rows(bottom):
        parsed["domains"][method] = dict(zip(PLACES, accuracies, strict=True))
        if costs:
            parsed["domains"][method]["cost"] = costs[0]
    architectures = next(text for text in found if "Backbone} & Num. & Head" in text)
    lines = [re.findall(r"(\d\d\.\d\d)\\%", row) for row in architectures.split(r"\\")]
    names = [f"{model}-{head}" for model in ("resnet9", "resnet18") for head in ("1fc", "2fc-norm", "2fc")]
    methods = ("stand-alone", "mixed-layout", "factorized-fl")
    values = [dict(zip(methods, map(float, line), strict=True)) for line in lines if line]
    parsed["architectures"] = dict(zip(names, values, strict=True))
    sparsity = next(text for text in found if r"\lambda_\text{sparse}" in text)
    parsed["sparsity"] = {
        "regular" if weight == "-" else f"lambda={float(weight):g}": {
            "millions": float(millions),
            "percent": int(percent),
            "accuracy": float(accuracy),
        }
        for weight, millions, percent, accuracy in re.findall(
            r"&\s+(-|\de-\d) & ([\d.]+) M \((\d+)\\%\) & \$([\d.]+)\\%\$", sparsity
        )
    }
    return parsed


def test_every_number_of_the_papers_tables_is_transcribed_as_printed(paper: str) -> None:
    parsed, ours = parse(paper), read_data("published.toml")
    assert set(ours) == set(parsed)
    for what in parsed:
        assert ours[what] == parsed[what], what
    assert len(parsed["label-cifar10"]) == len(parsed["label-svhn"]) == 9
    assert len(parsed["domains"]) == 8
    assert len(parsed["sparsity"]) == 6


def test_some_numbers_by_hand() -> None:
    """As read in the printed paper; holds where its source is not at hand, too."""
    table = read_data("published.toml")
    assert table["label-cifar10"]["factorized-fl-beta"]["standard-iid"] == [76.26, 1.05]
    assert table["label-svhn"]["fedfomo"]["permuted-non-iid"] == [61.45, 0.93]
    assert table["domains"]["factorized-fl"]["average"] == [64.49, 1.57]
    assert table["domains"]["fedfomo"]["cost"] == 244.66
    assert table["architectures"]["resnet18-2fc-norm"]["factorized-fl"] == 68.78
    assert table["sparsity"]["lambda=0.001"] == {"millions": 1.784, "percent": 69, "accuracy": 62.67}


@pytest.mark.parametrize("what", ["label-cifar10", "label-svhn", "domains"])
def test_the_methods_cost_column_is_the_papers(what: str) -> None:
    for method, row in read_data("published.toml")[what].items():
        gigabytes = METHODS[method].card.published_gb
        if what != "domains" and "cost" in row:
            assert gigabytes == row["cost"]

import csv
import io
from pathlib import Path

from factorized_fl.report.collect import collect
from factorized_fl.report.exports import as_csv, latex, markdown
from tests.report.synthetic import write_run

ROWS = [["method", "accuracy"], ["a|b_c & 100% <i>", "50.00"], ["=1+1", "-2.5"]]


def test_markdown_has_as_many_cells_as_the_table() -> None:
    assert markdown(ROWS).splitlines() == [
        "| method | accuracy |",
        "|---|---|",
        r"| a\|b\_c & 100% \<i\> | 50.00 |",
        "| =1+1 | -2.5 |",
    ]


def test_latex_escapes_what_has_a_meaning_there() -> None:
    lines = latex(ROWS).splitlines()
    assert lines[:3] == [r"\begin{tabular}{lr}", r"\toprule", r"method & accuracy \\"]
    assert lines[4] == r"a|b\_c \& 100\% <i> & 50.00 \\"
    assert lines[-1] == r"\end{tabular}"


def test_csv_reads_back_and_no_name_becomes_a_formula() -> None:
    read = list(csv.reader(io.StringIO(as_csv(ROWS))))
    assert read[:2] == ROWS[:2]
    assert read[2] == ["'=1+1", "-2.5"]


def test_files_of_a_run_and_of_a_comparison(tmp_path: Path) -> None:
    write_run(tmp_path / "stand-alone-seed1", "stand-alone")
    write_run(tmp_path / "fedavg-seed1", "fedavg", correct=[80, 50, 50, 50])
    document = collect([tmp_path])
    files = document["comparison"]["downloads"]
    assert list(files) == ["comparison.md", "comparison.tex", "comparison.csv", "comparison-clients.csv"]
    rows = list(csv.DictReader(io.StringIO(files["comparison.csv"])))
    assert [row["accuracy"] for row in rows] == ["50.00", "57.50"]
    assert (rows[1]["over its control"].split()[0], rows[1]["helped"], rows[1]["up"]) == ("'+7.5", "-", "12.0 kB")
    clients = list(csv.DictReader(io.StringIO(files["comparison-clients.csv"])))
    assert len(clients) == 8
    assert float(clients[0]["accuracy"]) == int(clients[0]["correct"]) / int(clients[0]["total"])
    fedavg = next(run for run in document["runs"] if run["method"] == "fedavg")
    verdicts = list(csv.DictReader(io.StringIO(fedavg["downloads"]["fedavg-seed1.csv"])))
    assert (verdicts[0]["client"], verdicts[0]["difference"], verdicts[0]["verdict"]) == (
        "client 1",
        "30.00",
        "undecided",
    )

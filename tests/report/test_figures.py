import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from factorized_fl.core.errors import UserError
from factorized_fl.report.collect import collect
from factorized_fl.report.figures import accuracies, freeze_layout, write_figures
from tests.report.synthetic import write_run


def test_every_figure_as_svg_and_png(tmp_path: Path) -> None:
    odd = ("$odd", "_names")  # mathematics and a hidden label, if they were taken as such
    write_run(tmp_path / "runs" / "stand-alone-seed1", "stand-alone", domains=odd)
    write_run(tmp_path / "runs" / "ours", domains=odd)
    files = write_figures([tmp_path / "runs"], tmp_path / "figures")
    names = {path.stem for path in files}
    assert {"accuracy-of-methods", "accuracy-against-bytes", "ours-accuracy", "ours-mixing", "ours-similarity"} <= names
    assert len(files) == 2 * len(names) == len(list((tmp_path / "figures").iterdir()))
    for path in files:
        if path.suffix == ".svg":
            assert ET.parse(path).getroot().tag.endswith("svg")
        else:
            assert Image.open(path).size[0] > 500


def test_accuracies_are_carried_forward(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", correct=[50, 60, 70, 80])
    lines = (path / "metrics.jsonl").read_text().splitlines(keepends=True)
    (path / "metrics.jsonl").write_text("".join(lines[1:8] + lines[9:]))  # client 1 missed rounds 1 and 3
    table = accuracies(collect([path])["runs"][0])
    assert table[1] == pytest.approx([30, 30, 60])
    assert np.isnan(table[0, 0])
    assert table[0, 1:] == pytest.approx([25, 25])


def test_the_last_bits_of_a_layout_do_not_matter() -> None:
    figure_module = pytest.importorskip("matplotlib.figure")

    def edges(nudge: float) -> list[np.ndarray]:
        """Where things are after settling, if the layout had put them a little elsewhere."""
        figure = figure_module.Figure(figsize=(4, 4), layout="constrained")
        part, other = figure.subfigures(2, 1)
        axes = [part.subplots(), other.subplots()]
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        part.bbox_relative.set_points(np.array([[0, 0.51], [1, 0.99]]) + nudge)
        for one in axes:
            one.set_position((0.11 + nudge, 0.12 + nudge, 0.8, 0.7))
        freeze_layout(figure)
        return [part.bbox_relative.get_points(), *(one.get_position(original=True).get_points() for one in axes)]

    assert all((one == other).all() for one, other in zip(edges(0.0), edges(1e-13), strict=True))
    assert not all((one == other).all() for one, other in zip(edges(0.0), edges(1e-3), strict=True))


def test_without_matplotlib_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(UserError, match=r"factorized-fl\[figures\]"):
        write_figures([write_run(tmp_path / "run")], tmp_path / "figures")

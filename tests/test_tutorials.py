"""The tutorials run from the first cell to the last."""

from pathlib import Path

import pytest

TUTORIALS = sorted((Path(__file__).parents[1] / "docs" / "tutorials").glob("*.ipynb"))


@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_runs(tutorial: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed (pip install -e '.[docs]')")
    client = pytest.importorskip("nbclient", reason="nbclient is not installed (pip install -e '.[docs]')")
    if tutorial.stem == "three-sites":
        pytest.importorskip("nvflare", reason="FLARE is not installed")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(tutorial, as_version=4)
    place = {"metadata": {"path": str(tmp_path)}}
    client.NotebookClient(notebook, timeout=300, kernel_name="python3", resources=place).execute()
    assert all(cell.execution_count for cell in notebook.cells if cell.cell_type == "code")

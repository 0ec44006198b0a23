import os
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from factorized_fl.core.errors import UserError
from factorized_fl.data.folder import read_folder


def fill(folder, values, suffix="png", side=4) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for value in values:
        Image.fromarray(np.full((side, side, 3), value, np.uint8)).save(folder / f"{value:03d}.{suffix}")


def test_classes_and_images_are_sorted(tmp_path) -> None:
    fill(tmp_path / "pets" / "dog", [30, 10])
    fill(tmp_path / "pets" / "cat", [20])
    fill(tmp_path / "pets" / ".hidden", [99])
    (tmp_path / "pets" / "cat" / "notes.txt").write_text("not an image")
    (tmp_path / "pets" / "cat" / "._020.png").write_text("left by a Mac")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pets = read_folder(tmp_path / "pets", size=None, channels=3)
    assert pets.name == "pets"
    assert pets.classes == ("cat", "dog")
    assert pets.labels.tolist() == [0, 1, 1]
    assert pets.images[:, 0, 0, 0].tolist() == [20, 10, 30]


@pytest.mark.parametrize("suffix", ["png", "JPG", "jpeg", "bmp", "webp", "tif", "tiff", "gif"])
def test_formats(tmp_path, suffix) -> None:
    fill(tmp_path / "a", [100], suffix)
    fill(tmp_path / "b", [200], suffix)
    both = read_folder(tmp_path, size=2, channels=1, name="both")
    assert both.name == "both"
    assert both.images.shape == (2, 1, 2, 2)
    assert np.allclose(both.images[:, 0, 0, 0], [100, 200], atol=3)


def test_a_few_unreadable_images_are_left_out_with_a_warning(tmp_path) -> None:
    fill(tmp_path / "a", range(15))
    fill(tmp_path / "b", range(4))
    (tmp_path / "a" / "007.png").write_bytes(b"broken")
    with pytest.warns(UserWarning, match=r"Left out 1 unreadable images of 19 .*a.007\.png"):
        rest = read_folder(tmp_path, size=4, channels=3)
    assert rest.images[:15, 0, 0, 0].tolist() == [0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 13, 14, 0]


def test_many_unreadable_images_are_refused(tmp_path) -> None:
    fill(tmp_path / "a", range(15))
    fill(tmp_path / "b", range(4))
    for name in ("001.png", "002.png"):
        (tmp_path / "a" / name).write_bytes(b"broken")
    with pytest.raises(UserError, match=r"2 of 19 images .*a.001\.png, a.002\.png"):
        read_folder(tmp_path, size=4, channels=3)


def test_one_image_of_unknown_white_level_is_refused(tmp_path) -> None:
    """Such an image is not a damaged download: others like it may have been read wrongly."""
    fill(tmp_path / "a", range(15))
    fill(tmp_path / "b", range(4))
    Image.fromarray(np.full((4, 4), 70_000, np.int32)).save(tmp_path / "b" / "deep.tif")
    with pytest.raises(
        UserError, match=r"deep\.tif has 32-bit or signed pixels, .*: save it with 8 or 16 bits, unsigned\.$"
    ):
        read_folder(tmp_path, size=4, channels=3)


def test_links_that_lead_nowhere_are_named(tmp_path) -> None:
    """Broken links to an image and to a class folder; a link to a folder counts as that folder."""
    fill(tmp_path / "data" / "a", range(3))
    fill(tmp_path / "data" / "b", range(2))
    fill(tmp_path / "elsewhere", range(5))
    (tmp_path / "data" / "c").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "data" / "b" / "gone.png").symlink_to(tmp_path / "nothing.png")
    (tmp_path / "data" / "d").symlink_to(tmp_path / "nothing")
    with pytest.warns(
        UserWarning, match=r"Broken links in .* are left out \(b/gone\.png, d\): repair or remove them\.$"
    ):
        images = read_folder(tmp_path / "data", size=4, channels=3)
    assert (images.classes, images.labels.bincount().tolist()) == (("a", "b", "c"), [3, 2, 5])


def test_an_empty_class_is_refused(tmp_path) -> None:
    fill(tmp_path / "a", range(3))
    fill(tmp_path / "b", [])
    with pytest.raises(UserError, match=r"class folder .*b holds no readable image"):
        read_folder(tmp_path, size=4, channels=3)


def test_a_class_of_unreadable_images_is_refused(tmp_path) -> None:
    fill(tmp_path / "a", range(20))
    fill(tmp_path / "b", [])
    (tmp_path / "b" / "x.png").write_bytes(b"broken")
    with pytest.warns(UserWarning, match="unreadable"), pytest.raises(UserError, match="b holds no readable image"):
        read_folder(tmp_path, size=4, channels=3)


def test_too_few_classes(tmp_path) -> None:
    with pytest.raises(UserError, match="no folder"):
        read_folder(tmp_path / "none", size=4, channels=3)
    with pytest.raises(UserError, match="no sub-folders"):
        read_folder(tmp_path, size=4, channels=3)
    fill(tmp_path / "a", [1])
    with pytest.raises(UserError, match="only the sub-folder 'a'"):
        read_folder(tmp_path, size=4, channels=3)


def test_unequal_sizes_ask_for_a_size(tmp_path) -> None:
    fill(tmp_path / "a", [1])
    fill(tmp_path / "b", [2], side=5)
    with pytest.raises(UserError, match=r"002\.png is 5x5 .*give a size"):
        read_folder(tmp_path, size=None, channels=3)
    assert read_folder(tmp_path, size=3, channels=3).images.shape[1:] == (3, 3, 3)


def test_a_folder_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", forbidden)
    with pytest.raises(UserError, match=r"cannot be read \(Permission denied\)"):
        read_folder(tmp_path, size=4, channels=1)


def test_images_in_deeper_folders_are_left_out_with_a_warning(tmp_path: Path) -> None:
    for name in ("a/1.png", "b/1.png", "b/more/2.png"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 4)).save(file)
    with pytest.warns(UserWarning, match=r"Images in .*more are left out"):
        assert len(read_folder(tmp_path, size=4, channels=1)) == 2


def test_a_class_whose_name_is_not_valid_text_is_refused(tmp_path: Path) -> None:
    """Such a class could be trained, but neither printed nor exported."""
    for name in (b"apples", b"\xe4pfel"):
        os.mkdir(os.path.join(os.fsencode(tmp_path), name))
    with pytest.raises(UserError, match="is not valid text: rename it"):
        read_folder(tmp_path, size=8, channels=1)

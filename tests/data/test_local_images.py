"""Local images: every layout gives the same images, and an inspection finds their problems."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from factorized_fl.core.errors import UserError
from factorized_fl.data.folder import empty_class, read_folder
from factorized_fl.data.images import Unreadable, counting
from factorized_fl.data.local_images import inspect_images, parts_of, read_local_images
from factorized_fl.data.scenarios import build_scenario
from factorized_fl.data.sources import load


def picture(path: Path, value: int, size: tuple[int, int] = (8, 8), mode: str = "L") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(value).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).convert(mode).save(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three cats and two dogs, grey and colour, of different sizes."""
    for index, size in enumerate(((8, 8), (16, 8), (9, 20))):
        picture(tmp_path / "pets" / "cat" / f"{index}.png", index, size, "RGB")
    for index in range(2):
        picture(tmp_path / "pets" / "dog" / f"{index}.png", 10 + index)
    return tmp_path / "pets"


def test_class_folders_as_a_research_run_reads_them(folder: Path) -> None:
    own = read_local_images(folder, "clinic", size=8, channels=1)
    assert (own.name, own.classes, own.split) == ("clinic", ("cat", "dog"), None)
    assert torch.equal(own.images, read_folder(folder, size=8, channels=1).images)
    assert own.labels.tolist() == [0, 0, 0, 1, 1]


def test_a_split_that_is_given_is_kept(tmp_path: Path) -> None:
    for index in range(6):
        picture(tmp_path / "train" / "ab"[index % 2] / f"{index}.png", index)
    picture(tmp_path / "validation" / "b" / "6.png", 6)
    picture(tmp_path / "validation" / "a" / "9.png", 9)
    picture(tmp_path / "test" / "b" / "7.png", 7)
    picture(tmp_path / "test" / "a" / "8.png", 8)
    own = read_local_images(tmp_path, "lab", size=8, channels=1)
    client = build_scenario([own], ((0.5,), (0.25,)), clients=1).clients[0]
    assert [len(client.train), len(client.validation), len(client.test)] == [6, 2, 2]
    assert own.labels[client.test].tolist() == [0, 1]


@pytest.mark.parametrize("name", ["val", "valid", "validation"])
def test_validation_has_more_than_one_name(name: str, tmp_path: Path) -> None:
    for index, split in enumerate(("train", name, "test")):
        for kind in "ab":
            picture(tmp_path / split / kind / "1.png", 2 * index + (kind == "b"))
    assert [part.split for part in parts_of(tmp_path)] == ["train", "validation", "test"]
    (found,) = load("folder", tmp_path, size=8, channels=1)
    assert len(found) == 6


@pytest.mark.parametrize("names", [("train", "val"), ("train", "test", "extra"), ("train", "test", "val", "valid")])
def test_an_incomplete_split_is_refused(names: tuple[str, ...], tmp_path: Path) -> None:
    for index, split in enumerate(names):
        picture(tmp_path / split / "a" / "1.png", index)
    with pytest.raises(UserError, match="images that are split lie in train and test, perhaps in validation"):
        load("folder", tmp_path, size=8, channels=1)


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    for index, name in enumerate(("bus", "train")):
        picture(tmp_path / name / "1.png", index)
    (found,) = load("folder", tmp_path, size=8, channels=1)
    assert found.classes == ("bus", "train")


def test_a_test_class_without_training_images_is_refused(tmp_path: Path) -> None:
    for part, names in (("train", "ab"), ("test", "bc")):
        for name in names:
            picture(tmp_path / part / name / "0.png", 1)
    with pytest.raises(UserError, match=r"test images .* have classes that no training image has \('c'\)") as refusal:
        read_local_images(tmp_path, "lab", size=8, channels=1)
    assert str(refusal.value) in inspect_images(tmp_path).complaints()


def test_a_class_without_test_images_gives_a_warning(tmp_path: Path) -> None:
    for part, names in (("train", "abc"), ("test", "ab")):
        for index, name in enumerate(names):
            picture(tmp_path / part / name / "0.png", index + 10 * (part == "test"))
    with pytest.warns(UserWarning, match=r"test images .* lack classes that are trained on \('c'\)") as told:
        own = read_local_images(tmp_path, "lab", size=8, channels=1)
    assert own.labels.tolist() == [0, 1, 2, 0, 1]
    assert [str(one.message) for one in told] == inspect_images(tmp_path).complaints()[
        3:
    ]  # after that they have few images


@pytest.mark.parametrize("names", ["a", ""])
def test_a_part_of_one_class_is_refused_in_the_same_words(names: str, tmp_path: Path) -> None:
    for part, classes in (("train", "ab"), ("test", names)):
        (tmp_path / part).mkdir()
        for name in classes:
            picture(tmp_path / part / name / "0.png", 1)
    with pytest.raises(UserError, match=r"test holds (only the sub-folder 'a'|no sub-folders)") as refusal:
        read_local_images(tmp_path, "lab", size=8, channels=1)
    assert str(refusal.value) in inspect_images(tmp_path).complaints()


def test_classes_that_parquet_files_name_but_do_not_show(tmp_path: Path, write_parquet, colours) -> None:
    write_parquet(tmp_path / "train.parquet", colours[:2], [0, 1])
    test = write_parquet(tmp_path / "test.parquet", colours[2:4], [1, 0], names=("cat", "dog", "owl", "yak"))
    assert read_local_images(tmp_path, "lab", size=4, channels=3).labels.tolist() == [0, 1, 1, 0]
    write_parquet(test, colours[2:4], [2, 0])
    with pytest.raises(UserError, match=r"classes that no training image has \('owl'\)") as refusal:
        read_local_images(tmp_path, "lab", size=4, channels=3)
    assert str(refusal.value) in inspect_images(tmp_path).complaints()


def test_parquet_whole_and_split(tmp_path: Path, write_parquet, colours) -> None:
    file = write_parquet(tmp_path / "all" / "data.parquet", colours[:4], [0, 1, 2, 1])
    whole = read_local_images(file, "lab", size=4, channels=3)
    assert (whole.split, whole.labels.tolist()) == (None, [0, 1, 2, 1])
    write_parquet(tmp_path / "split" / "train.parquet", colours[:4], [0, 1, 2, 1])
    write_parquet(tmp_path / "split" / "test.parquet", colours[3:5], [2, 0])
    with pytest.warns(UserWarning, match=r"lack classes that are trained on \('dog'\)"):
        split = read_local_images(tmp_path / "split", "lab", size=4, channels=3)
    assert split.split is not None
    assert split.split.tolist() == [0, 0, 0, 0, 2, 2]
    found = inspect_images(tmp_path / "split")
    assert found.counts["test"] == {"owl": 1, "cat": 1}
    assert found.across == [("train.parquet row 3", "test.parquet row 0")]
    (alone,) = load("folder", file)
    assert len(alone.images) == 4
    write_parquet(tmp_path / "split" / "extra.parquet", colours[:1], [0])
    with pytest.raises(UserError, match=r"extra\.parquet is in no part"):
        inspect_images(tmp_path / "split")


def test_an_inspection_counts_sizes_and_finds_problems(tmp_path: Path) -> None:
    for index in range(12):
        picture(tmp_path / "train" / "a" / f"{index}.png", index)
        picture(tmp_path / "train" / "b" / f"{index}.png", 100 + index, (16, 8), "RGB")
        picture(tmp_path / "test" / "a" / f"{index}.png", 200 + index)
    picture(tmp_path / "test" / "a" / "leak.bmp", 3)  # train/a/3.png in another format
    picture(tmp_path / "train" / "b" / "wrong.png", 5)  # train/a/5.png under another class
    picture(tmp_path / "train" / "a" / "again.png", 7)
    (tmp_path / "train" / "b" / "torn.png").write_bytes(b"\x89PNG and no more")
    found = inspect_images(tmp_path)
    assert found.counts == {"train": {"a": 13, "b": 13}, "test": {"a": 13}}
    assert found.sizes == {(8, 8): 27, (16, 8): 12}
    assert (found.total, found.grey, found.unreadable) == (39, 27, [("train", "train/b/torn.png")])
    assert found.across == [("train/a/3.png", "test/a/leak.bmp")]
    assert found.contradicted == [("train/a/5.png", "train/b/wrong.png")]
    assert found.repeated == [("train/a/7.png", "train/a/again.png")]
    assert len(found.complaints()) == 6  # one of them is the missing test folder of class b


def test_an_inspection_of_class_folders_without_images(folder: Path, tmp_path: Path) -> None:
    (folder / "bird").mkdir()
    (folder / "fish").mkdir()
    (folder / "fish" / "0.png").write_bytes(b"no picture")
    said = inspect_images(folder).complaints()
    assert [name for name in ("bird", "cat", "fish") if empty_class(folder / name) in said] == ["bird", "fish"]
    (tmp_path / "bad" / "a").mkdir(parents=True)
    (tmp_path / "bad" / "a" / "0.png").write_bytes(b"no picture")
    with pytest.raises(UserError, match="holds no readable images"):
        inspect_images(tmp_path / "bad")


def test_an_inspection_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no readable images"):
        inspect_images(tmp_path)
    with pytest.raises(UserError, match="no folder or parquet"):
        inspect_images(tmp_path / "nowhere")


def test_images_of_12_bits_in_16_give_a_warning(tmp_path: Path) -> None:
    for index, name in enumerate(("a", "b")):
        (tmp_path / name).mkdir()
        pixels = np.full((8, 8), 4095 - index, dtype=np.uint16)
        Image.fromarray(pixels).save(tmp_path / name / "1.png")
    dark = r"nearly black: no value is above 15 of 255\. Scale 16-bit images"
    with pytest.warns(UserWarning, match=dark):
        read_local_images(tmp_path, "clinic", size=8, channels=1)
    assert any(re.search(dark, line) for line in inspect_images(tmp_path).complaints())


def test_an_inspection_finds_images_of_unknown_white_level(folder: Path) -> None:
    (folder / "deep").mkdir()
    Image.new("I", (8, 8), 70_000).save(folder / "deep" / "0.tif")
    Image.new("F", (8, 8), 0.5).save(folder / "deep" / "1.tif")
    said = [line for line in inspect_images(folder).complaints() if "deep/0.tif" in line]
    assert said == [f"pets/deep/0.tif {Unreadable.UNKNOWN_WHITE}, and 1 more like it."]
    for name in ("cat", "dog"):
        shutil.rmtree(folder / name)
    with pytest.raises(UserError, match=re.escape(Unreadable.UNKNOWN_WHITE)):
        inspect_images(folder)


def test_an_inspection_finds_more_unreadable_images_than_a_run_leaves_out(tmp_path: Path) -> None:
    """A run counts them in each part: a small share of all images may be a large share of the test images."""
    for part, count in (("train", 30), ("test", 10)):
        for index in range(count):
            picture(tmp_path / part / "ab"[index % 2] / f"{index}.png", index + 100 * (part == "test"))
    (tmp_path / "test" / "a" / "bad0.png").write_bytes(b"broken")
    assert not any("unreadable" in line for line in inspect_images(tmp_path).complaints())
    (tmp_path / "test" / "a" / "bad1.png").write_bytes(b"broken")
    (said,) = [line for line in inspect_images(tmp_path).complaints() if "unreadable" in line]
    with pytest.raises(UserError, match=r"2 of 12 images in .*test are unreadable") as refusal:
        read_local_images(tmp_path, "lab", size=8, channels=1)
    assert said.replace("test/a/", "a/") == str(refusal.value)


def test_an_inspection_finds_the_one_unreadable_row_that_stops_a_run(tmp_path: Path, write_parquet, colours) -> None:
    file = write_parquet(tmp_path / "data.parquet", [*colours, *colours, b"no image"], [0, 1] * 6 + [0])
    with pytest.raises(UserError, match=f"Row 12 of .* {Unreadable.DAMAGED}"):
        read_local_images(file, "lab", size=4, channels=3)
    assert f"data.parquet row 12 {Unreadable.DAMAGED}." in inspect_images(file).complaints()


def test_an_inspection_reports_its_progress_and_knows_a_folder_of_domains(tmp_path: Path) -> None:
    for label in ("a", "b"):
        (tmp_path / "one" / label).mkdir(parents=True)
        for number in range(20):
            Image.new("L", (4, 4), 10 * number + 50).save(tmp_path / "one" / label / f"{number}.png")
    told: list[int] = []
    with counting(told.append):
        assert inspect_images(tmp_path / "one").total == 40
    assert told == list(range(1, 41))
    with pytest.raises(UserError, match=r"holds one folder of images per domain, .* inspect each of them separately"):
        inspect_images(tmp_path)


@pytest.mark.parametrize("split", [False, True])
def test_an_inspection_knows_a_folder_of_domains_that_hold_parquet(
    split: bool, tmp_path: Path, write_parquet, colours
) -> None:
    names = ("train", "test") if split else ("photo", "sketch")
    for index, name in enumerate(names):
        write_parquet(tmp_path / name / "part.parquet", colours[3 * index : 3 * index + 3], [0, 1, 2])
    if split:
        assert [part.split for part in parts_of(tmp_path)] == ["train", "test"]
        found = inspect_images(tmp_path)
        assert found.counts == {name: {"cat": 1, "dog": 1, "owl": 1} for name in names}
        own = read_local_images(tmp_path, "lab", size=4, channels=3)
        assert own.split is not None
        assert own.split.tolist() == [0, 0, 0, 2, 2, 2]
    else:
        with pytest.raises(UserError, match=r"holds one folder of images per domain, .* inspect each of them"):
            inspect_images(tmp_path)
        assert inspect_images(tmp_path / "photo").total == 3


def test_files_of_unknown_formats_give_a_warning_in_runs_and_inspections(folder: Path) -> None:
    for name in ("cat/scan.DCM", "cat/IM0001", "dog/phone.heic", "dog/notes.txt", "dog/.hidden"):
        (folder / name).write_bytes(b"not for us")
    told = f"3 files in {folder} are left out (no file extension, .dcm, .heic): save images as PNG, JPEG or TIFF."
    with pytest.warns(UserWarning, match=re.escape(told)):
        read_local_images(folder, "clinic", size=8, channels=1)
    assert told in inspect_images(folder).complaints()


@pytest.mark.parametrize("parts", [("",), ("train", "test")])
def test_a_folder_of_unknown_formats_alone_is_refused(parts: tuple[str, ...], tmp_path: Path) -> None:
    for part in parts:
        for place in ("well", "ill"):
            (tmp_path / part / place).mkdir(parents=True)
            (tmp_path / part / place / "1.dcm").write_bytes(b"DICM")
    with pytest.raises(UserError, match=re.escape("2 files in")) as error:
        inspect_images(tmp_path)
    assert "(.dcm): save images as PNG, JPEG or TIFF" in str(error.value)

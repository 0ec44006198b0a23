import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from factorized_fl.core.errors import UserError
from factorized_fl.data.parquet import read_parquet


def read(*files, size=None, channels=3):
    return read_parquet(files, name="tiny", size=size, channels=channels)


def test_six_images_come_back_as_written(tmp_path, write_parquet, colours) -> None:
    file = write_parquet(tmp_path / "a.parquet", colours, [2, 0, 1, 1, 0, 2])
    tiny = read(file)
    assert tiny.name == "tiny"
    assert tiny.classes == ("cat", "dog", "owl")
    assert tiny.labels.tolist() == [2, 0, 1, 1, 0, 2]
    assert (tiny.images.numpy() == np.stack(colours).transpose(0, 3, 1, 2)).all()


def test_files_follow_each_other(tmp_path, write_parquet, colours) -> None:
    first = write_parquet(tmp_path / "b.parquet", colours[:5], [0] * 5)
    second = write_parquet(tmp_path / "a.parquet", colours[5:], [1])
    tiny = read(first, second)
    assert tiny.images[:, 0, 0, 0].tolist() == [0, 10, 20, 30, 40, 50]
    assert tiny.labels.tolist() == [0, 0, 0, 0, 0, 1]


def test_size_and_channels(tmp_path, write_parquet) -> None:
    mixed = [np.full((4, 8, 3), 50, np.uint8), np.full((3, 3), 90, np.uint8)]
    tiny = read(write_parquet(tmp_path / "a.parquet", mixed, [0, 1]), size=2, channels=1)
    assert tiny.images.tolist() == [[[[50, 50], [50, 50]]], [[[90, 90], [90, 90]]]]


def test_labels_without_names_are_numbered(tmp_path, write_parquet, colours) -> None:
    tiny = read(write_parquet(tmp_path / "a.parquet", colours, [0, 3, 1, 0, 0, 0], names=None))
    assert tiny.classes == ("0", "1", "2", "3")


def test_cifar100_has_two_labels_and_the_fine_one_counts(tmp_path, write_parquet, colours) -> None:
    extra = {"coarse_label": [0] * 6}
    file = write_parquet(tmp_path / "a.parquet", colours, [2] * 6, columns=("img", "fine_label"), extra=extra)
    assert read(file).labels.tolist() == [2] * 6


def test_the_only_integer_column_is_the_label(tmp_path, write_parquet, colours) -> None:
    file = write_parquet(tmp_path / "a.parquet", colours, [1] * 6, columns=("x", "kind"), extra={"note": ["n"] * 6})
    assert read(file).labels.tolist() == [1] * 6


def test_two_columns_that_could_be_the_label(tmp_path, write_parquet, colours) -> None:
    extra = {"second": [5, 4, 3, 2, 1, 0]}
    file = write_parquet(tmp_path / "a.parquet", colours, [0] * 6, columns=("x", "first"), extra=extra)
    with pytest.raises(UserError, match=r"2 columns that could be the label.*call it 'label'"):
        read(file)


def test_no_image_column(tmp_path, write_parquet, colours) -> None:
    pq.write_table(pa.table({"label": [0, 1]}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match="0 columns that could be the image"):
        read(tmp_path / "a.parquet")


@pytest.mark.parametrize("bad", [b"", b"no image", None])
def test_an_undecodable_image_is_named_with_its_file_and_row(tmp_path, write_parquet, colours, bad) -> None:
    good = write_parquet(tmp_path / "a.parquet", colours, [0] * 6)
    file = write_parquet(tmp_path / "b.parquet", [*colours[:5], bad], [0] * 6)
    with pytest.raises(UserError, match=r"Row 5 of .*b\.parquet holds no readable image"):
        read(good, file)


def test_an_image_of_unknown_white_level_is_named_with_its_file_and_row(tmp_path, write_parquet) -> None:
    stream = io.BytesIO()
    Image.new("I", (4, 4), 70_000).save(stream, "TIFF")
    file = write_parquet(tmp_path / "a.parquet", [stream.getvalue()], [0])
    with pytest.raises(
        UserError, match=r"Row 0 of .*a\.parquet has 32-bit or signed pixels, .*: save it with 8 or 16 bits"
    ):
        read(file)


def test_a_truncated_image_is_undecodable(tmp_path, write_parquet, png) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (16, 16, 3)).astype(np.uint8)
    file = write_parquet(tmp_path / "a.parquet", [png(noise)[:400]], [0])
    with pytest.raises(UserError, match="Row 0"):
        read(file)


@pytest.mark.parametrize(("label", "words"), [(-1, "the label -1"), (3, "the label 3"), (None, "no label")])
def test_a_label_out_of_range_is_named(tmp_path, write_parquet, colours, label, words) -> None:
    file = write_parquet(tmp_path / "a.parquet", colours, [0, 1, 2, 0, label, 0])
    with pytest.raises(UserError, match=rf"Row 4 of .*a\.parquet has {words}, .*0 to 2"):
        read(file)


def test_row_numbers_are_no_classes(tmp_path, write_parquet, colours) -> None:
    file = write_parquet(tmp_path / "a.parquet", colours, [0, 1, 10**9, 0, 0, 0], names=None)
    with pytest.raises(UserError, match=r"Row 2 .*1000000000"):
        read(file)


def test_unequal_sizes_ask_for_a_size(tmp_path, write_parquet, colours) -> None:
    odd = np.zeros((5, 5, 3), np.uint8)
    with pytest.raises(UserError, match=r"Row 1 .*5x5.*give a size"):
        read(write_parquet(tmp_path / "a.parquet", [colours[0], odd], [0, 1]))
    with pytest.raises(UserError, match=r"Row 0 .*6x4.*give a size"):
        read(write_parquet(tmp_path / "b.parquet", [np.zeros((4, 6, 3), np.uint8)], [0]))


def test_different_class_names_do_not_mix(tmp_path, write_parquet, colours) -> None:
    first = write_parquet(tmp_path / "a.parquet", colours, [0] * 6)
    second = write_parquet(tmp_path / "b.parquet", colours, [0] * 6, names=("x", "y", "z"))
    with pytest.raises(UserError, match="different classes"):
        read(first, second)


def test_missing_cut_and_foreign_files(tmp_path, write_parquet, colours) -> None:
    whole = write_parquet(tmp_path / "a.parquet", colours, [0] * 6).read_bytes()
    with pytest.raises(UserError, match="no file"):
        read(tmp_path / "none.parquet")
    cut = tmp_path / "cut.parquet"
    cut.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"cut\.parquet is not a complete parquet file"):
        read(cut)
    foreign = tmp_path / "foreign.parquet"
    foreign.write_text("a,b\n1,2\n")
    with pytest.raises(UserError, match="not a complete parquet file"):
        read(foreign)
    spoilt = tmp_path / "spoilt.parquet"
    spoilt.write_bytes(whole[:4] + b"\xff" * 200 + whole[204:])
    with pytest.raises(UserError, match="not a complete parquet file"):
        read(spoilt)


def test_nothing_to_read(tmp_path, write_parquet) -> None:
    with pytest.raises(UserError, match="at least one file"):
        read()
    empty = write_parquet(tmp_path / "a.parquet", [], pa.array([], pa.int64()))
    with pytest.raises(UserError, match="no rows"):
        read(empty)


@pytest.mark.parametrize(("size", "channels"), [(0, 3), (8, 2)])
def test_impossible_shapes(tmp_path, write_parquet, colours, size, channels) -> None:
    with pytest.raises(UserError, match=r"not 0|not 2"):
        read(write_parquet(tmp_path / "a.parquet", colours, [0] * 6), size=size, channels=channels)

import io
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from factorized_fl.core.errors import UserError
from factorized_fl.data.images import ImageSet, Unreadable, decode_each, to_array


def make(images=None, labels=None, classes=("a", "b"), split=None) -> ImageSet:
    images = torch.zeros(2, 3, 4, 4, dtype=torch.uint8) if images is None else images
    return ImageSet("tiny", images, torch.tensor([0, 1]) if labels is None else labels, classes, split)


def test_a_good_set_knows_its_length() -> None:
    assert len(make(split=torch.zeros(2, dtype=torch.uint8))) == 2


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"images": torch.zeros(2, 3, 4, 4)}, "uint8"),
        ({"images": torch.zeros(2, 3, 4, dtype=torch.uint8)}, r"\[N, C, H, W\]"),
        ({"images": torch.zeros(0, 3, 4, 4, dtype=torch.uint8)}, r"\[N, C, H, W\]"),
        ({"images": torch.zeros(2, 2, 4, 4, dtype=torch.uint8)}, "1 or 3 channels"),
        ({"images": torch.zeros(2, 3, 4, 5, dtype=torch.uint8)}, "square"),
        ({"labels": torch.tensor([0.0, 1.0])}, "int64"),
        ({"labels": torch.tensor([0])}, r"int64 \[2\]"),
        ({"labels": torch.tensor([0, 2])}, "0 to 2, but there are 2 classes"),
        ({"labels": torch.tensor([-1, 1])}, "-1 to 1"),
        ({"split": torch.zeros(3, dtype=torch.uint8)}, r"split must be uint8 \[2\]"),
    ],
)
def test_a_malformed_set_is_refused(wrong, says) -> None:
    with pytest.raises(UserError, match=f"'tiny'.*{says}"):
        make(**wrong)


def test_pixels_keep_their_place() -> None:
    pixels = np.arange(2 * 2 * 3, dtype=np.uint8).reshape(2, 2, 3)
    assert (to_array(Image.fromarray(pixels), None, 3) == pixels.transpose(2, 0, 1)).all()
    assert (to_array(Image.fromarray(pixels), 2, 3) == pixels.transpose(2, 0, 1)).all()


def test_grey_is_repeated_over_three_channels() -> None:
    grey = np.array([[3, 9], [0, 255]], np.uint8)
    assert (to_array(Image.fromarray(grey), 2, 1) == grey[None]).all()
    assert (to_array(Image.fromarray(grey), 2, 3) == np.stack([grey] * 3)).all()


def test_colour_becomes_luminance() -> None:
    assert to_array(Image.new("RGB", (2, 2), (255, 0, 0)), 2, 1)[0, 0, 0] == 76


def test_alpha_lies_on_white() -> None:
    half = Image.new("RGBA", (2, 2), (0, 0, 0, 128))
    assert (to_array(half, 2, 3) == 127).all()
    clear = Image.new("P", (2, 2), 0)
    clear.putpalette([10, 20, 30])
    clear.info["transparency"] = 0
    assert (to_array(clear, 2, 3) == 255).all()


def test_sixteen_bit_grey_is_scaled() -> None:
    deep = Image.fromarray(np.array([[0, 257], [65535, 25700]], np.uint16))
    assert to_array(deep, 2, 1).tolist() == [[[0, 1], [255, 100]]]


def test_sixteen_bit_grey_may_be_a_negative_or_partly_clear_or_turned(tmp_path: Path) -> None:
    """Like 8-bit grey: a TIFF may define 0 as white, a PNG one grey as transparent, either may be rotated."""
    deep = Image.fromarray(np.array([[0, 257], [65535, 25700]], np.uint16))
    exif = Image.Exif()
    exif[0x0112] = 3
    deep.save(tmp_path / "negative.tif", tiffinfo={262: 0})
    deep.save(tmp_path / "clear.png", transparency=257)
    deep.save(tmp_path / "turned.png", exif=exif)
    deep.save(tmp_path / "turned.tif", tiffinfo={274: 3})
    files = [tmp_path / name for name in ("negative.tif", "clear.png", "turned.png", "turned.tif")]
    negative, clear, *turned = decode_each(files, 2, 1)
    assert negative.tolist() == [[[255, 254], [0, 155]]]
    assert clear.tolist() == [[[0, 255], [255, 100]]]
    assert [found.tolist() for found in turned] == [[[[100, 255], [1, 0]]]] * 2


def test_twelve_bit_grey_is_scaled(tmp_path: Path) -> None:
    """Two pixels in three bytes: 0 and white."""
    tags = [(256, 2), (257, 1), (258, 12), (259, 1), (262, 1), (273, 8), (277, 1), (278, 1), (279, 3)]
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    head = b"II*\0" + struct.pack("<I", 12) + b"\x00\x0f\xff\0" + struct.pack("<H", len(tags))
    (tmp_path / "twelve.tif").write_bytes(head + entries + bytes(4))
    (grey,) = decode_each([tmp_path / "twelve.tif"], None, 1)
    assert grey.tolist() == [[[0, 255]]]


@pytest.mark.parametrize("pixels", [np.float32(0.7), np.int32(300), np.int32(70_000), np.int32(-1)])
def test_which_number_is_white_is_not_guessed(pixels: np.generic, tmp_path: Path) -> None:
    """Pillow would convert numbers between 0 and 1 to black, and integers above 255 to white."""
    Image.fromarray(np.full((2, 2), pixels)).save(tmp_path / "deep.tif")
    assert list(decode_each([tmp_path / "deep.tif"], 2, 1)) == [Unreadable.UNKNOWN_WHITE]


def test_sixteen_bits_with_a_sign_are_not_sixteen_bits(tmp_path: Path) -> None:
    signed = {258: 16, 339: 2}  # bits per sample, and a sign
    Image.fromarray(np.full((2, 2), 7, np.uint16)).save(tmp_path / "signed.tif", tiffinfo=signed)
    assert list(decode_each([tmp_path / "signed.tif"], 2, 1)) == [Unreadable.UNKNOWN_WHITE]


def test_the_centre_square_is_kept() -> None:
    wide = np.zeros((2, 6, 3), np.uint8)
    wide[:, 2:4] = 200
    assert (to_array(Image.fromarray(wide), 2, 3) == 200).all()
    assert (to_array(Image.fromarray(wide.transpose(1, 0, 2).copy()), 1, 3) == 200).all()


def test_scaling_down_averages() -> None:
    board = (np.indices((8, 8)).sum(0) % 2 * 255).astype(np.uint8)
    small = to_array(Image.fromarray(board), 2, 1)
    assert np.abs(small.astype(int) - 127).max() <= 2


def test_orientation_is_obeyed() -> None:
    picture = Image.fromarray(np.array([[0, 255]], np.uint8).repeat(8, 0).repeat(4, 1))
    exif = Image.Exif()
    exif[0x0112] = 3
    stream = io.BytesIO()
    picture.save(stream, "JPEG", exif=exif)
    upright = to_array(Image.open(stream), None, 1)[0]
    assert upright[0, 0] > 200
    assert upright[0, -1] < 50


@pytest.mark.parametrize("padding", [b"", b"\0" * 20_000])
def test_decoding_keeps_the_order_on_one_thread_and_on_many(png, colours, padding) -> None:
    sources = [png(colours[i % 6]) + padding for i in range(300)]
    sources[7] = b"no image" + padding
    decoded = list(decode_each([*sources, None], None, 3))
    assert (decoded[7], decoded[300]) == (Unreadable.DAMAGED, Unreadable.DAMAGED)
    reds = [int(pixels[0, 0, 0]) for pixels in decoded if not isinstance(pixels, Unreadable)]
    assert reds == [10 * (i % 6) for i in range(300) if i != 7]

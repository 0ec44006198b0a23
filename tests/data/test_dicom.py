"""Pictures with more than 8 bits by a window, and DICOM files: tiny synthetic ones, and one sentence for each fault."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from factorized_fl.core.errors import UserError
from factorized_fl.data import dicom
from factorized_fl.data.images import Pixels, Unreadable, decode_each
from factorized_fl.data.windows import Window, parse_window, windowing

VALUES = np.array([[0, 100, 200], [300, 400, 1000]], dtype=np.uint16)


def decode(path: Path, window: str = "", channels: int = 1) -> Pixels | Unreadable:
    with windowing(window):
        (found,) = decode_each([path], None, channels)
    return found


def test_a_window_by_hand() -> None:
    """Level 200, width 200: 100 and below are black, 300 and above white, 200 is the middle."""
    assert Window(200, 200).grey(VALUES).tolist() == [[0, 0, 128], [255, 255, 255]]
    assert parse_window("-600/1500") == Window(-600.0, 1500.0)
    assert parse_window("") is None


@pytest.mark.parametrize("words", ["40", "40/0", "40/-5", "a/b", "40/400/2", "nan/10", "40/inf"])
def test_a_wrong_window_is_refused(words: str) -> None:
    with pytest.raises(UserError, match=r"must be LEVEL/WIDTH with a width above 0, as in 40/400"):
        parse_window(words)


def test_a_window_applies_to_16_bits_and_leaves_8_bits_alone(tmp_path: Path) -> None:
    Image.fromarray(VALUES).save(tmp_path / "deep.png")
    Image.fromarray(VALUES.clip(0, 255).astype(np.uint8)).save(tmp_path / "flat.png")
    assert decode(tmp_path / "deep.png", "200/200").tolist() == [[[0, 0, 128], [255, 255, 255]]]
    assert decode(tmp_path / "deep.png").max() == 1000 * 255 // 65535  # nearly black without one
    assert decode(tmp_path / "flat.png", "200/200").tolist() == decode(tmp_path / "flat.png").tolist()


def write_dicom(path: Path, values: Any = VALUES, **tags: Any) -> Path:
    """An uncompressed DICOM file of these pixels; a tag None is left out."""
    pydicom = pytest.importorskip("pydicom")
    uid = pydicom.uid
    values = np.asarray(values)
    meta = pydicom.dataset.FileMetaDataset()
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = uid.CTImageStorage, "1.2.3"
    meta.TransferSyntaxUID = uid.ExplicitVRLittleEndian
    made = pydicom.dataset.Dataset()
    made.file_meta = meta
    made.SOPClassUID, made.SOPInstanceUID = meta.MediaStorageSOPClassUID, "1.2.3"
    bits = 8 * values.itemsize
    colour = values.ndim == 3 and values.shape[-1] == 3
    made.Rows, made.Columns = values.shape[-3:-1] if colour else values.shape[-2:]
    made.SamplesPerPixel = 3 if colour else 1
    made.PhotometricInterpretation = "RGB" if colour else "MONOCHROME2"
    if colour:
        made.PlanarConfiguration = 0
    made.BitsAllocated, made.BitsStored, made.HighBit = bits, bits, bits - 1
    made.PixelRepresentation = int(values.dtype.kind == "i")
    made.PixelData = values.tobytes() + b"\0" * (values.nbytes % 2)
    for name, value in tags.items():
        setattr(made, name, value)
    made.save_as(path, enforce_file_format=True)
    return path


def test_a_dicom_file_by_its_own_and_by_a_chosen_window(tmp_path: Path) -> None:
    """Stored 1024 more than its Hounsfield units, with the window 200/200 of the file."""
    path = write_dicom(
        tmp_path / "IM0001", VALUES + 1024, RescaleIntercept=-1024, RescaleSlope=1, WindowCenter=200, WindowWidth=200
    )
    assert decode(path).tolist() == [[[0, 0, 128], [255, 255, 255]]]
    assert decode(path, "500/1000").tolist() == [[[0, 26, 51], [76, 102, 255]]]
    assert decode(path, channels=3).shape == (3, 2, 3)


def test_further_kinds_of_dicom(tmp_path: Path) -> None:
    signed = write_dicom(tmp_path / "s.dcm", VALUES.astype(np.int16) - 200, WindowCenter=[0, 5], WindowWidth=[200, 10])
    assert decode(signed).tolist() == [[[0, 0, 128], [255, 255, 255]]]  # the first of two windows
    white = write_dicom(tmp_path / "w.dcm", PhotometricInterpretation="MONOCHROME1", WindowCenter=200, WindowWidth=200)
    assert decode(white).tolist() == [[[255, 255, 127], [0, 0, 0]]]
    flat = write_dicom(tmp_path / "f.dcm", np.array([[0, 7], [200, 255]], dtype=np.uint8))
    assert decode(flat).tolist() == [[[0, 7], [200, 255]]]
    colours = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    assert decode(write_dicom(tmp_path / "c.dcm", colours), channels=3).tolist() == colours.transpose(2, 0, 1).tolist()
    assert decode(flat.read_bytes()).tolist() == [[[0, 7], [200, 255]]]


def test_each_fault_has_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert decode(write_dicom(tmp_path / "w.dcm")) is Unreadable.NO_WINDOW
    frames = write_dicom(
        tmp_path / "f.dcm", np.stack([VALUES, VALUES]), NumberOfFrames=2, WindowCenter=9, WindowWidth=9
    )
    assert decode(frames) is Unreadable.FRAMES
    good = write_dicom(tmp_path / "g.dcm", WindowCenter=200, WindowWidth=200)
    (tmp_path / "cut.dcm").write_bytes(good.read_bytes()[:-6])
    assert decode(tmp_path / "cut.dcm") is Unreadable.DAMAGED
    (tmp_path / "no.dcm").write_bytes(b"no DICOM")
    assert decode(tmp_path / "no.dcm") is Unreadable.DAMAGED
    pydicom = pytest.importorskip("pydicom")
    dataset = pydicom.dcmread(good)
    dataset.file_meta.TransferSyntaxUID = pydicom.uid.JPEGLSLossless
    dataset.PixelData = pydicom.encaps.encapsulate([b"no picture"])
    dataset["PixelData"].VR = "OB"
    dataset.save_as(tmp_path / "p.dcm")
    assert decode(tmp_path / "p.dcm") is Unreadable.PACKED
    monkeypatch.setitem(sys.modules, "pydicom", None)
    monkeypatch.setattr(dicom.importlib.util, "find_spec", lambda name: None)
    assert decode(good) is Unreadable.NO_PYDICOM
    assert str(Unreadable.NO_PYDICOM) == 'is a DICOM file: pip install "factorized-fl[dicom]"'

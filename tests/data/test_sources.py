from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from factorized_fl.core.errors import UserError
from factorized_fl.data import parquet, sources
from factorized_fl.data.images import ImageSet
from factorized_fl.data.parquet import read_rows
from factorized_fl.data.sources import DOMAINS, load, normalisation

SHARED = Path(__file__).parents[2].parent / "shared" / "data"
DOMAIN_CLASSES = sorted(name for names in DOMAINS.values() for name in names.split())
# CIFAR-100 numbers its classes by name, so two that belong to no domain stand at the ends.
NAMES = ["aquarium_fish", *DOMAIN_CLASSES, "worm"]

pytestmark = pytest.mark.filterwarnings("ignore:.* holds no (train|test) files")  # most sets here are of one part


def pixel(value: int) -> np.ndarray:
    return np.full((4, 4, 3), value, np.uint8)


@pytest.fixture
def root(tmp_path, write_parquet) -> Path:
    """A data folder: cifar10 in three files, an MNIST, a CIFAR-100 with one image of each class."""
    write_parquet(tmp_path / "cifar10" / "test-0.parquet", [pixel(3)], [0])
    write_parquet(tmp_path / "cifar10" / "train-1.parquet", [pixel(2)], [1])
    write_parquet(tmp_path / "cifar10" / "train-0.parquet", [pixel(1)], [2])
    write_parquet(tmp_path / "mnist" / "train-0.parquet", [np.full((28, 28), 9, np.uint8)] * 2, [0, 1])
    columns, images = ("img", "fine_label"), [pixel(i) for i in range(52)]
    write_parquet(tmp_path / "cifar100" / "train.parquet", images[:30], range(30), names=NAMES, columns=columns)
    write_parquet(tmp_path / "cifar100" / "test.parquet", images[30:], range(30, 52), names=NAMES, columns=columns)
    return tmp_path


def test_train_files_come_before_test_files(root) -> None:
    (only,) = load("cifar10", root)
    assert only.name == "cifar10"
    assert only.images[:, 0, 0, 0].tolist() == [1, 2, 3]
    assert only.labels.tolist() == [2, 1, 0]


def test_a_set_is_decoded_once(root, monkeypatch) -> None:
    first = load("cifar10", root)[0]
    monkeypatch.setattr(parquet, "read_parquet", None)
    assert torch.equal(load("cifar10", root)[0].images, first.images)
    with pytest.raises(TypeError):
        load("cifar10", root, size=2)


def test_mnist_is_grey_by_default(root) -> None:
    assert load("mnist", root)[0].images.shape == (2, 1, 28, 28)
    colour = load("mnist", root, size=32, channels=3)[0].images
    assert colour.shape == (2, 3, 32, 32)
    assert colour.unique().tolist() == [9]


def test_cifar100_keeps_all_classes(root) -> None:
    (whole,) = load("cifar100", root)
    assert len(whole.classes) == 52
    assert whole.labels.tolist() == list(range(52))


@pytest.mark.parametrize("folder", ["cifar100", "cifar100-domains"])
def test_the_five_domains(root, folder) -> None:
    (root / "cifar100").rename(root / folder)
    for _ in range(2):
        domains = load("cifar100-domains", root)
        assert [d.name for d in domains] == ["household", "fruit-food", "tree-flower", "transport", "animals"]
        for domain in domains:
            assert domain.classes == tuple(sorted(DOMAINS[domain.name].split()))
            assert domain.labels.tolist() == list(range(10))
            assert domain.images[:, 0, 0, 0].tolist() == [NAMES.index(name) for name in domain.classes]


def test_ranks_follow_the_ids_not_the_names(root, write_parquet) -> None:
    backwards = NAMES[::-1]
    file = root / "cifar100-domains" / "train.parquet"
    write_parquet(file, [pixel(i) for i in range(52)], range(52), names=backwards, columns=("img", "fine_label"))
    household = load("cifar100-domains", root)[0]
    assert household.classes == tuple(sorted(DOMAINS["household"].split(), reverse=True))
    assert household.images[:, 0, 0, 0].tolist() == [backwards.index(name) for name in household.classes]


def test_each_domain_has_ten_classes_and_none_twice() -> None:
    assert [len(names.split()) for names in DOMAINS.values()] == [10] * 5
    assert len(set(DOMAIN_CLASSES)) == 50


def test_cifar100_without_the_right_classes(root, write_parquet) -> None:
    file = root / "cifar100-domains" / "train.parquet"
    write_parquet(file, [pixel(0)], [0], names=NAMES[:-3], columns=("img", "fine_label"))
    with pytest.raises(UserError, match="do not include 'willow_tree'"):
        load("cifar100-domains", root)
    write_parquet(file, [pixel(0)], [NAMES.index("bed")], names=NAMES, columns=("img", "fine_label"))
    with pytest.raises(UserError, match="no image of the domain 'fruit-food'"):
        load("cifar100-domains", root)


@pytest.mark.parametrize(
    ("dataset", "fetch"), [("cifar10", "cifar10"), ("svhn", "svhn"), ("cifar100-domains", "cifar100")]
)
def test_the_error_for_missing_files_names_the_command_that_fetches_them(tmp_path, dataset, fetch) -> None:
    for data in (None, tmp_path / "elsewhere"):
        with pytest.raises(UserError, match=f"ffl data fetch {fetch}`.*with data=\\."):
            load(dataset, data)


def test_fetched_data_are_found(own_cache, write_parquet) -> None:
    write_parquet(own_cache / "hub" / "svhn" / "train-0.parquet", [pixel(4)], [0])
    assert load("svhn")[0].images.unique().tolist() == [4]


def test_drawn_sets() -> None:
    assert [d.name for d in load("embedded", size=8, channels=1)] == ["digits", "shapes", "textures"]
    for name in ("digits", "shapes", "textures"):
        (only,) = load(name)
        assert (only.name, only.images.shape[1:]) == (name, (3, 16, 16))


def save(path: Path, value: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixel(value)).save(path)


def test_a_folder_of_classes(tmp_path, monkeypatch) -> None:
    save(tmp_path / "pets" / "dog" / "1.png", 1)
    save(tmp_path / "pets" / "cat" / "1.png", 2)
    (pets,) = load("folder", tmp_path / "pets")
    assert (pets.name, pets.classes, pets.images[:, 0, 0, 0].tolist()) == ("pets", ("cat", "dog"), [2, 1])
    monkeypatch.chdir(tmp_path / "pets")
    assert load("folder", Path())[0].name == "pets"


def test_a_renamed_class_is_noticed(tmp_path) -> None:
    save(tmp_path / "dog" / "1.png", 1)
    save(tmp_path / "cat" / "1.png", 2)
    load("folder", tmp_path)
    (tmp_path / "dog").rename(tmp_path / "wolf")
    assert load("folder", tmp_path)[0].classes == ("cat", "wolf")
    (tmp_path / "yak").mkdir()
    with pytest.raises(UserError, match="yak holds no readable image"):
        load("folder", tmp_path)


def test_a_folder_of_domains(tmp_path) -> None:
    for number, domain in enumerate(("photo", "sketch")):
        for label in ("cat", "dog"):
            save(tmp_path / "data" / domain / label / "1.png", number)
    photo, sketch = load("folder", tmp_path / "data", channels=1)
    assert (photo.name, sketch.name) == ("photo", "sketch")
    assert sketch.images.unique().tolist() == [1]
    assert sketch.images.shape[1] == 1


def test_a_folder_of_domains_that_hold_parquet(tmp_path, write_parquet) -> None:
    """One domain per sub-folder, also beside domains of class folders, and never class folders."""
    for number, domain in enumerate(("photo", "sketch")):
        write_parquet(tmp_path / "data" / domain / "all.parquet", [pixel(number), pixel(99)], [0, 1])
    photo, sketch = load("folder", tmp_path / "data")
    assert (photo.name, sketch.name) == ("photo", "sketch")
    assert photo.images[:, 0, 0, 0].tolist() == [0, 99]
    assert sketch.images[:, 0, 0, 0].tolist() == [1, 99]
    assert sketch.classes == ("cat", "dog", "owl")
    (tmp_path / "data" / "photo").rename(tmp_path / "data" / "painting")
    save(tmp_path / "data" / "toy" / "cat" / "1.png", 50)
    save(tmp_path / "data" / "toy" / "dog" / "1.png", 60)
    assert [found.name for found in load("folder", tmp_path / "data")] == ["painting", "sketch", "toy"]


def test_train_and_test_folders_of_parquet_are_one_set(tmp_path, write_parquet) -> None:
    for number, part in enumerate(("train", "test")):
        write_parquet(tmp_path / "data" / part / "all.parquet", [pixel(number), pixel(99)], [0, 1])
    (only,) = load("folder", tmp_path / "data")
    assert only.split is not None
    assert (only.name, only.split.tolist()) == ("data", [0, 0, 2, 2])


def test_a_folder_with_a_split_of_its_own(tmp_path) -> None:
    """The split is kept, alone and as one of several domains."""
    for value, part in enumerate(("train", "validation", "test")):
        for label in ("cat", "dog"):
            save(tmp_path / "data" / "photo" / part / label / "1.png", value)
            save(tmp_path / "data" / "sketch" / label / f"{value}.png", 7)
    (photo,) = load("folder", tmp_path / "data" / "photo")
    assert (photo.name, photo.classes) == ("photo", ("cat", "dog"))
    assert photo.split is not None
    assert photo.split.tolist() == photo.images[:, 0, 0, 0].tolist() == [0, 0, 1, 1, 2, 2]
    first, second = load("folder", tmp_path / "data")
    assert torch.equal(first.images, photo.images)
    assert (second.name, len(second), second.split) == ("sketch", 6, None)


def test_an_incomplete_dataset_is_refused(tmp_path, write_parquet) -> None:
    write_parquet(tmp_path / "cifar10" / "train-00001-of-00002.parquet", [pixel(1)], [0])
    with pytest.raises(UserError, match="holds 1 of 2 train files"):
        load("cifar10", tmp_path)
    write_parquet(tmp_path / "cifar10" / "train-00000-of-00002.parquet", [pixel(1)], [0])
    with pytest.warns(UserWarning, match="holds no test files"):
        assert len(load("cifar10", tmp_path)[0]) == 2


def test_folder_needs_a_folder(tmp_path) -> None:
    with pytest.raises(UserError, match=r"with data=\."):
        load("folder")
    with pytest.raises(UserError, match="no folder"):
        load("folder", tmp_path / "none")


@pytest.mark.parametrize("dataset", ["embedded", "digits"])
def test_a_folder_is_refused_for_drawn_images(dataset: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"'{dataset}' are drawn and not those in .* set dataset=folder"):
        load(dataset, tmp_path)


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(UserError, match=r"'cifar11'\. Did you mean 'cifar10'"):
        load("cifar11")


def test_normalisation() -> None:
    assert normalisation("cifar10", 3) == ((0.491, 0.482, 0.447), (0.247, 0.243, 0.262))
    cifar100 = ((0.507, 0.487, 0.441), (0.268, 0.257, 0.276))
    assert normalisation("cifar100", 3) == normalisation("cifar100-domains", 3) == cifar100
    assert normalisation("svhn", 3) == ((0.4380, 0.4440, 0.4730), (0.1751, 0.1771, 0.1744))
    assert normalisation("mnist", 1) == ((0.1307,), (0.3081,))
    assert normalisation("mnist", 3) == normalisation("embedded", 3) == ((0.5,) * 3, (0.25,) * 3)
    assert normalisation("cifar10", 1) == ((0.5,), (0.25,))


needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason=f"the shared data are not at {SHARED}")


@needs_shared
def test_the_real_mnist(tmp_path) -> None:
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "test.parquet").symlink_to(SHARED / "mnist" / "test-00000-of-00001.parquet")
    (mnist,) = load("mnist", tmp_path)
    assert mnist.images.shape == (5000, 1, 28, 28)
    assert mnist.labels[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    # The first test image is the famous seven: a bar at the top, nothing at the lower left.
    assert mnist.images[0, 0, 7:9, 6:22].float().mean() > 100
    assert mnist.images[0, 0, 14:, :8].max() == 0
    # The constants describe the 60,000 training images; these 5,000 are a little cleaner.
    mean, std = normalisation("mnist", 1)
    assert mnist.images.float().mean() / 255 == pytest.approx(mean[0], abs=0.01)
    assert mnist.images.float().std() / 255 == pytest.approx(std[0], abs=0.02)


@needs_shared
def test_the_real_class_names() -> None:
    def names(folder: str) -> tuple[str, ...]:
        return read_rows(SHARED / folder / "test-00000-of-00001.parquet")[0]

    assert " ".join(names("cifar10")) == "airplane automobile bird cat deer dog frog horse ship truck"
    cifar100 = names("cifar100-domains")
    assert len(cifar100) == 100
    assert set(DOMAIN_CLASSES) <= set(cifar100)


def test_the_mixture_keeps_some_classes_of_each_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four classes, of which the mixture keeps the last and the first, in this order; the split follows."""
    images = torch.arange(8, dtype=torch.uint8).view(8, 1, 1, 1)
    split = torch.tensor([0, 0, 0, 0, 1, 1, 2, 2], dtype=torch.uint8)
    whole = ImageSet("s", images, torch.tensor([0, 1, 2, 3, 0, 1, 2, 3]), ("a", "b", "c", "d"), split)
    monkeypatch.setattr(sources, "MIXTURE", {"s": "d a"})
    monkeypatch.setattr(sources, "cached_parquet", lambda *given: whole)
    monkeypatch.setattr(sources, "_parquet_files", lambda *given: [])
    monkeypatch.setitem(sources.HUB, "s", {})
    monkeypatch.setattr(sources, "DATASETS", (*sources.DATASETS, "s"))
    (found,) = sources.load("mixture")
    assert found.classes == ("d", "a")
    assert found.images.flatten().tolist() == [0, 3, 4, 7]
    assert found.labels.tolist() == [1, 0, 1, 0]
    assert found.split is not None
    assert found.split.tolist() == [0, 0, 1, 2]
    monkeypatch.setattr(sources, "MIXTURE", {"s": "e"})
    with pytest.raises(UserError, match="The classes of 's' do not include 'e'"):
        sources.load("mixture")

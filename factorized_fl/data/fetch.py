"""Download of public datasets from the Hugging Face hub, verified by the hub's checksums."""

import os
import shutil
from collections.abc import Callable
from hashlib import file_digest
from pathlib import Path
from typing import Any

from factorized_fl.core.errors import UserError, unknown
from factorized_fl.data.cache import cache_folder
from factorized_fl.data.sources import HUB


def fetch_dataset(
    name: str,
    dest: Path | None = None,
    *,
    endpoint: str | None = None,
    on_progress: Callable[[str, int, int], None] = lambda file, done, total: None,
) -> Path:
    """Download the training and test files of a dataset into `<dest>/<name>` and return that folder.

    `dest`, by default the cache folder's `hub`, is what `load` takes as its `data`. Complete files are kept, and parts
    of files resumed. `on_progress` gets each file's name, the bytes fetched so far and the bytes of all files.
    """
    if name not in HUB:
        raise unknown("dataset to fetch", name, HUB)
    try:
        from huggingface_hub import HfApi
    except ImportError as error:
        raise UserError('Fetching data needs the hub client: pip install "factorized-fl[hub]".') from error

    repo, config = HUB[name]["place"]
    # The datasets are public, so that no token is sent.
    api = HfApi(endpoint=endpoint, token=False)
    try:
        info = api.dataset_info(repo, files_metadata=True)
    except Exception as error:
        raise _unreachable(name, api.endpoint, error) from error
    # The prefixes leave out SVHN's `extra` split: half a million images that no experiment of the paper uses.
    files = [f for f in info.siblings or [] if f.rfilename.startswith((f"{config}/train", f"{config}/test"))]
    files = sorted((f for f in files if f.rfilename.endswith(".parquet")), key=lambda f: f.rfilename)
    if not files:
        raise UserError(f"{repo} on {api.endpoint} has no parquet files in '{config}': the hub may have moved them.")

    folder = (cache_folder() / "hub" if dest is None else dest) / name
    partial = folder / ".partial"
    total, done = sum(file.size or 0 for file in files), 0
    for file in files:
        target = folder / Path(file.rfilename).name
        if not _complete(target, file):
            try:
                partial.mkdir(parents=True, exist_ok=True)
                arrived = api.hf_hub_download(
                    repo, file.rfilename, repo_type="dataset", revision=info.sha, local_dir=partial
                )
            except Exception as error:
                raise _unreachable(name, api.endpoint, error) from error
            if not _complete(Path(arrived), file):
                shutil.rmtree(partial)
                raise UserError(
                    f"{file.rfilename} arrived damaged from {api.endpoint} (size or sha256 differ): "
                    f"it was deleted; run `ffl data fetch {name}` again."
                )
            os.replace(arrived, target)
        done += file.size or 0
        on_progress(target.name, done, total)
    shutil.rmtree(partial, ignore_errors=True)
    return folder


def _complete(path: Path, file: Any) -> bool:
    """Return whether a file on the disk has the size and the sha256 that the hub reports for it."""
    if not path.is_file() or path.stat().st_size != file.size:
        return False
    if file.lfs is None:
        return True
    with path.open("rb") as opened:
        return file_digest(opened, "sha256").hexdigest() == str(file.lfs.sha256)


def _unreachable(name: str, endpoint: str, error: Exception) -> UserError:
    # The exceptions differ between versions of the hub's client; all of them mean that the hub did not answer.
    reason = str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__
    return UserError(
        f"{name} could not be fetched from {endpoint} ({reason}): check the network and the free space, then try again."
    )

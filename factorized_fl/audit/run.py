"""The audit of one run: all attacks on what each party saw, and their results as records."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from factorized_fl.audit.estimates import Measure
from factorized_fl.audit.membership import FALSE_SHARE, infer_membership, make_pools
from factorized_fl.audit.observe import Seen, Source, observe
from factorized_fl.audit.pictures import reconstruct
from factorized_fl.audit.prints import read_fingerprints
from factorized_fl.audit.updates import guess_domains, guess_senders
from factorized_fl.core.errors import UserError
from factorized_fl.core.files import write_atomically
from factorized_fl.core.views import Tensors
from factorized_fl.results.environment import describe_environment
from factorized_fl.results.schema import AUDIT
from factorized_fl.simulate.build import Federation
from factorized_fl.simulate.own import Run
from factorized_fl.simulate.run import describe_run

FORMAT = 1
SHADOWS, PICTURES = 16, 6
_AREA, _SHARE = "area under the ROC curve", "share of right guesses"
_FOUND = f"members found where {FALSE_SHARE:.0%} of other images pass as members"


@dataclass(frozen=True)
class Finding:
    """One attack on the view of one party."""

    view: str
    attack: str
    measure: str
    result: Measure

    def record(self) -> dict[str, Any]:
        """Return the finding as JSON holds it."""
        numbers = {name: round(value, 4) for name, value in asdict(self.result).items()}
        return {"view": self.view, "attack": self.attack, "measure": self.measure, **numbers}


def audit(
    run: Run | Path | str,
    *,
    data: Path | str | None = None,
    shadows: int = SHADOWS,
    pictures: int = PICTURES,
    progress: Callable[[str], None] = lambda part: None,
) -> dict[str, Any]:
    """Attack what each party of a finished simulation saw, and keep the results in the run's audit.json.

    Args:
        run: the result of `ffl.run`, or a run directory whose data and network the package can load again.
        data: The folder of the datasets, for a run directory.
        shadows: The number of times that the run is repeated with other training images.
        pictures: The number of clients from which a picture is reconstructed.
        progress: Called with the name of each part that is done.

    Returns:
        The content of audit.json.

    Raises:
        UserError: The run is not complete, cannot be repeated here, or cannot be attacked.
    """
    if not isinstance(run, Run):
        run = Run(Path(run), data=Path(data) if data else None)
    elif data is not None:
        raise UserError("This run brings its own data: leave data= out.")
    if run.summary() is None:
        raise UserError(f"'{run.path}' is not complete: let the run finish, then audit it.")
    source = Source(run.config(), run.scenario, run.factory, run.brought)
    run.refuse_other_data(describe_run(source.build()))
    recorded = run.load_checkpoint() if run.checkpoint_path.exists() else None
    findings = attack(source, recorded, shadows=shadows, pictures=pictures, done=progress)
    environment = describe_environment(source.config.seed, "cpu")
    content = {
        "format": FORMAT,
        "method": source.config.method,
        "seed": source.config.seed,
        "shadows": shadows,
        "pictures": pictures,
        "findings": [finding.record() for finding in findings],
        "environment": environment,
    }
    write_atomically(run.path / AUDIT, (json.dumps(content, indent=1) + "\n").encode())
    return content


def attack(
    source: Source,
    recorded: Tensors | None,
    *,
    shadows: int,
    pictures: int,
    done: Callable[[str], None] = lambda part: None,
) -> list[Finding]:
    """Return the findings on a run. `recorded` is its last checkpoint, with which the repeated run must agree.

    Raises UserError if the run cannot be attacked, or is not what its configuration and data give here.
    """
    config = source.config
    if source.scenario.labels.is_floating_point():
        raise UserError("An audit needs classes, but this run predicts numbers or several labels: audit another run.")
    if config.fraction < 1 or config.dropout:
        raise UserError(
            f"An audit follows every client in every round, but this run has fraction = {config.fraction:g} and "
            f"dropout = {config.dropout:g}: audit a run with fraction = 1 and dropout = 0."
        )
    pools = make_pools(source.scenario, config.seed)
    plain = replace(source, config=replace(config, protect="none")) if config.protect != "none" else source
    target = observe(plain.tested_last())
    done("the run itself")
    if recorded is not None:
        _refuse_other_run(plain.build(), target, recorded)
    found = []
    hidden = config.protect == "encrypt"
    for result in infer_membership(
        plain, target, pools, shadows=shadows, hides_uploads=hidden, done=lambda: done("a shadow run")
    ):
        found.append(Finding(result.view, "membership", _AREA, result.auc))
        found.append(Finding(result.view, "membership", _FOUND, result.found))
    if not hidden:
        for name, guessed in (
            ("the sender of an update without a name", guess_senders(target)),
            ("the domain of an update", guess_domains(target, source.scenario)),
        ):
            if guessed:
                found.append(Finding("the coordinator", name, _SHARE, guessed))
        for case, recognised in reconstruct(
            plain, target, pictures=pictures, done=lambda: done("a reconstruction")
        ).items():
            found.append(Finding("the coordinator", f"picture from an update: {case}", _AREA, recognised))
    for name, told in read_fingerprints(plain).items():
        measure = _SHARE if name == "domain" else _AREA
        found.append(Finding("the coordinator", f"fingerprint: {name}", measure, told))
    done("fingerprints")
    return found


def _refuse_other_run(federation: Federation, target: Seen, recorded: Tensors) -> None:
    """Raise UserError if the repeated run did not end with the tensors that the run recorded."""
    for name, stacked in federation.clients.state.common.items():
        kept = recorded.get(f"state/all/{name}")
        if kept is None or not stacked.is_floating_point() or name not in target.final[0]:
            continue
        again = torch.stack([final[name] for final in target.final])
        if kept.shape != again.shape or not torch.allclose(kept.cpu(), again, rtol=1e-2, atol=1e-4):
            raise UserError(
                f"The run cannot be repeated here: its tensor {name} differs from the repeated one. Audit it with the "
                "version, the data and the kind of machine that it was made with."
            )

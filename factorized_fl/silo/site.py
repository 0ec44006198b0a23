"""One site: its own data, its own model, and answers to what the coordinator asks.

A round that was trained is kept before it is answered: state, metrics and the answer itself are on disk, tagged with
federation and round, the round before it too. A request that comes again is answered from there, never trained twice.
"""

import json
import secrets
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from factorized_fl.config import Config
from factorized_fl.core.errors import UserError
from factorized_fl.core.files import plain_errors, write_atomically
from factorized_fl.core.ledger import Load, Traffic, traffic, upload_loads
from factorized_fl.core.payload import encode
from factorized_fl.data.own import read_own
from factorized_fl.data.scenarios import Scenario, build_scenario
from factorized_fl.data.sources import normalisation
from factorized_fl.engine import Evaluated, Trained
from factorized_fl.export.export import Exported, export_client
from factorized_fl.methods import Tensors
from factorized_fl.results.environment import describe_environment
from factorized_fl.results.rundir import Record, RunDirectory, describe_clients
from factorized_fl.silo.agreement import NOISE_SEED, Kit
from factorized_fl.silo.checks import FINGERPRINT, check_growth, read_tensors
from factorized_fl.silo.messages import BadMessage, Message, pack, unpack
from factorized_fl.silo.updates import load_of
from factorized_fl.simulate.analysis import analyse
from factorized_fl.simulate.build import Federation, build_federation
from factorized_fl.simulate.rounds import make_record, train_from_here
from factorized_fl.simulate.run import run, summarise


def site_scenario(config: Config, name: str, seat: int, data: Path) -> Scenario:
    """A site's own images, split by the federation's seed unless they come split; its labels agree with nobody's."""
    images = read_own(data, name, size=config.image_size, channels=config.channels)
    scenario = build_scenario(
        [images],
        normalisation("folder", config.channels),
        clients=1,
        train_share=config.train_share,
        seed=config.seed,
    )
    (client,) = scenario.clients
    if not len(client.test):
        raise UserError(f"{data} has no test images: without any, nobody can tell whether the federation helps.")
    return replace(scenario, clients=(replace(client, name=name, seat=seat),), labels_agree=False)


def site_federation(
    kit: Kit, scenario: Scenario, device: str = "cpu", engine: str = "reference", noise_seed: int = 0
) -> Federation:
    """The site as a federation of one at its start, unless its data are not those that it has trained with."""
    federation = build_federation(kit.config, scenario, torch.device(device), engine, noise_seed)
    RunDirectory(kit.run).refuse_other_data(describe_clients(federation.scenario))
    return federation


def _noise_seed(kit: Kit) -> int:
    """A number that nobody else knows, drawn once: noise drawn twice would average out."""
    path = kit.path / NOISE_SEED
    if not path.exists():
        write_atomically(path, str(secrets.randbits(63)).encode())
        path.chmod(0o600)
    try:
        return int(path.read_text(encoding="ascii"))
    except ValueError:
        raise UserError(f"'{path}' is damaged: put the number back that was there, or take a new kit.") from None


def restore(kit: Kit, federation: Federation, log: Callable[[str], None]) -> int:
    """Load the last round that is safely on disk, or the one before it; returns its number, 0 if there is none."""
    directory = RunDirectory(kit.run)
    for path in (directory.checkpoint_path, directory.previous_path):
        if not path.exists():
            continue
        try:
            with safe_open(path, "pt") as file:
                tags = file.metadata()
                if tags.get("federation") != kit.plan.id:
                    raise UserError(f"'{path}' belongs to another federation: give this one a kit of its own.")
                federation.load({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
                return int(tags["round"])
        except (OSError, SafetensorError, KeyError, ValueError, TypeError, RuntimeError) as error:
            log(f"{path.name} is damaged ({error}): trying the round before")
    return 0


def export_now(kit: Kit, data: Path, out: Path | None = None) -> Exported:
    """A site's model as it is after its last round, without disturbing anybody at work."""
    federation = site_federation(kit, site_scenario(kit.config, kit.party, kit.seat, data))
    rounds = restore(kit, federation, lambda line: warnings.warn(line, stacklevel=2))
    if not rounds:
        trained = RunDirectory(kit.run).checkpoint_path.exists()
        found = "its checkpoints are damaged" if trained else "it has trained no round yet"
        raise UserError(f"{kit.party} has no model to export: {found}.")
    ended = RunDirectory(kit.run).summary() is not None
    baseline = RunDirectory(kit.alone).summary() if ended and kit.alone.exists() else None
    count = RunDirectory(kit.run).rounds_trained(0, rounds)
    return export_client(federation, 0, rounds, count, out or kit.model, kit.party, baseline)


class Site:
    """A site's state in memory, and on disk after every round."""

    def __init__(self, kit: Kit, data: Path, log: Callable[[str], None], *, device: str = "cpu", report: bool) -> None:
        self.kit, self.log, self.report, self.device = kit, log, report, device
        self.config = kit.config
        self.scenario = site_scenario(kit.config, kit.party, kit.seat, data)
        self.federation = self._start()
        self.directory = RunDirectory(kit.run)
        with plain_errors(kit.run):
            kit.run.mkdir(parents=True, exist_ok=True)
        self.done = restore(kit, self.federation, log)
        who = describe_clients(self.federation.scenario)
        self.directory.begin(self.config, describe_environment(self.config.seed, device), who, self.done)
        self.train_images = len(self.federation.scenario.clients[0].train)

    # -- what survives a crash

    def _answer_path(self, round: int) -> Path:
        return self.directory.path / f"answer-{round % 2}.message"

    def _save(self, round: int, answer: Message) -> None:
        """Keep a trained round; the checkpoint comes last, for it is what makes the round count."""
        write_atomically(self._answer_path(round), pack(answer))
        self.directory.keep_previous()
        self.directory.save_checkpoint(round, self.federation.tensors, federation=self.kit.plan.id)
        self.done = round

    def _kept(self, round: int) -> Message | None:
        """The answer to an earlier request, if it is one of the last two rounds."""
        try:
            content = self._answer_path(round).read_bytes()
        except FileNotFoundError:
            return None
        kept = unpack(content, self.kit.plan.id, len(content))
        return kept if kept.fields.get("request") == f"round-{round}" else None

    def _go_back(self) -> None:
        """To the last round that is kept, or to the start."""
        if not restore(self.kit, self.federation, self.log):
            self.federation = self._start()

    def _start(self) -> Federation:
        return site_federation(self.kit, self.scenario, self.device, "auto", _noise_seed(self.kit))

    # -- answers

    def answer(self, request: Message) -> Message:
        """Do what the coordinator asks, if it is in order."""
        try:
            if request.kind == "round":
                return self._round(request)
            if request.kind == "loss":
                return self._reply(request, {"loss": self._loss(request)})
            if request.kind == "test":
                return self._reply(request, self._test(request))
            raise BadMessage(f"nobody here knows what {request.kind[:40]!r} means")
        except BadMessage as error:
            self.log(f"refused what the coordinator sent: {error}")
            return self._reply(request, {"result": "refused", "reason": str(error)[:200]})

    def _reply(self, request: Message, fields: dict[str, object], payload: bytes = b"") -> Message:
        name = request.fields.get("request")
        return Message("answer", self.kit.plan.id, {"request": name, **fields}, payload)

    def _round(self, request: Message) -> Message:
        round = request.whole("round", low=1, high=self.config.rounds)
        if request.text("request") != f"round-{round}":
            raise BadMessage("its name and its round differ")
        if round <= self.done:
            if kept := self._kept(round):
                self.log(f"answered round {round} again from disk")
                return kept
            raise BadMessage(f"round {round} is over here: {self.done} rounds are done")
        began = time.monotonic()
        federation = self.federation
        down = Load()
        began_with: Tensors = {}
        if request.fields.get("download"):
            tensors = read_tensors(request.payload, self._shared())
            down = load_of(tensors, federation.roles) * request.whole("models", high=10_000)
            for name, tensor in tensors.items():
                federation.state.common[name][0] = tensor
            began_with = tensors
        trained = train_from_here(federation, round, [0])[0]
        try:
            check_growth({name: self._shared()[name] for name in began_with}, began_with)
        except BadMessage as error:
            self._go_back()
            raise BadMessage(f"what came does not train here ({error})") from None
        up = upload_loads(federation, [0])[0]
        result = federation.engine.evaluate(round, [0], federation.state, federation.start)[0]
        cost = traffic(federation, 0, down, up)
        record = make_record(round, 0, self.kit.party, result, trained, cost)
        self.directory.append("metrics.jsonl", [record])
        upload = dict(self._shared())
        vector = federation.method.fingerprint(federation.state.client(0), federation.roles)
        if upload and vector is not None and not federation.method.fingerprint_is_shared:
            upload[FINGERPRINT] = vector
        seconds = time.monotonic() - began
        self.directory.append("timing.jsonl", [{"round": round, "seconds": seconds}])
        fields = {
            "result": "trained",
            "round": round,
            "steps": trained.steps,
            "seconds": seconds,
            **self._reported(result, trained),
        }
        answer = self._reply(request, fields, encode(upload) if upload else b"")
        self._save(round, answer)
        self.log(f"trained round {round} of {self.config.rounds}: {100 * result.accuracy:.2f}% on own test images")
        return answer

    def _reported(self, result: Evaluated, trained: Trained | None) -> dict[str, object]:
        """What the coordinator learns of how well it goes here: nothing, unless the site wants to tell."""
        if not self.report:
            return {}
        record = make_record(0, 0, "", result, trained, Traffic())
        return {name: record[name] for name in ("accuracy", "correct", "total", "loss", "train_loss")}

    def _shared(self) -> Tensors:
        return {name: self.federation.state.common[name][0] for name in sorted(self.federation.shared)}

    def _loss(self, request: Message) -> float | None:
        """The loss on held-out images with somebody's shared tensors in this site's own model."""
        if not len(self.federation.scenario.clients[0].holdout):
            raise BadMessage("this method holds no images out")
        tensors = read_tensors(request.payload, self._shared())
        asked, path = request.text("request"), self.directory.path / "losses.json"
        known = json.loads(path.read_text()) if path.exists() else {}
        if asked not in known:  # else a coordinator that died asks again, perhaps when this site has gone on
            candidate = {name: tensor.unsqueeze(0) for name, tensor in tensors.items()}
            (loss,) = self.federation.engine.validation_losses(0, self.federation.state.client(0), candidate)
            round = f"loss-{request.whole('round')}-"
            known = {old: value for old, value in known.items() if old.startswith(round)}
            known[asked] = loss if abs(loss) < 1e30 else None
            write_atomically(path, json.dumps(known).encode())
        return known[asked]

    def _test(self, request: Message) -> dict[str, object]:
        round = request.whole("round", low=1, high=self.config.rounds)
        federation = self.federation
        result = federation.engine.evaluate(round, [0], federation.state, federation.start)[0]
        if not any(record["round"] == round for record in self.directory.metrics()):
            record = make_record(round, 0, self.kit.party, result, None, Traffic())
            self.directory.append("metrics.jsonl", [record])
        return {"result": "tested", **self._reported(result, None)}

    # -- the end

    def finish(self, alone: bool = True) -> Exported | None:
        """The model out: with its accuracy, and with a Stand-Alone model's beside it unless that is not wanted.

        Who never trained with the others has no model of the federation: the Stand-Alone model is all it has.
        """
        if self.done:
            self.directory.save_analysis(analyse(self.federation))
        self.directory.save_summary(summarise(self.directory))
        trained = self.directory.rounds_trained(0, self.done)
        baseline = self._train_alone(trained or self.config.rounds) if alone else None
        if self.done:
            exported = export_client(self.federation, 0, self.done, trained, self.kit.model, self.kit.party, baseline)
        elif alone:
            self.log("took part in no round: the model is the one that was trained alone")
            exported = self._export_alone()
        else:
            self.log("took part in no round and trained none alone: there is no model")
            return None
        self.log(f"model: {100 * exported.accuracy:.2f}% on {exported.images} own test images")
        return exported

    def _train_alone(self, rounds: int) -> Record | None:
        """A model of as many rounds as this site trained: more would count against the federation."""
        self.log(f"training a model alone for {rounds} rounds, to see whether the federation helped")
        same = {"settle": self.config.options["settle"]}  # or that would count as the federation's help
        config = replace(self.config, method="stand-alone", options=same, clients=1, fraction=1.0, rounds=rounds)
        return run(config, self.kit.alone, scenario=self.scenario, resume=True, device=self.device).summary()

    def _export_alone(self) -> Exported:
        directory = RunDirectory(self.kit.alone)
        config = directory.config()
        federation = build_federation(config, self.scenario, torch.device("cpu"), "reference")
        with directory.reading_checkpoint():
            federation.load(directory.load_checkpoint())
        return export_client(federation, 0, config.rounds, config.rounds, self.kit.model, self.kit.party)

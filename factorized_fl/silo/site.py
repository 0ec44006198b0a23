"""One site: its own data, its own model, and answers to the coordinator's requests.

A trained round is saved before it is answered: state, metrics and the answer are on disk, tagged with federation and
round, and so is the round before. A repeated request is answered from disk and never trained twice.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from factorized_fl.core.files import plain_errors, write_atomically
from factorized_fl.core.ledger import EXTRA, Load, Traffic, count_traffic, measured
from factorized_fl.core.payload import encode
from factorized_fl.core.seeds import derive
from factorized_fl.core.server import ServerState
from factorized_fl.core.views import Evaluated, Tensors, Trained
from factorized_fl.export.export import Exported, export_client, measure_client
from factorized_fl.protect.ckks import Secret
from factorized_fl.protect.client import BadAggregate, Sealer
from factorized_fl.results.classes import save_classes
from factorized_fl.results.control import control_of
from factorized_fl.results.environment import describe_environment
from factorized_fl.results.rundir import RunDirectory, describe_clients
from factorized_fl.silo.agreement import Kit
from factorized_fl.silo.catch_up import REQUEST
from factorized_fl.silo.checks import check_growth, read_tensors
from factorized_fl.silo.checksum import digest_of
from factorized_fl.silo.clinical import CLINICAL, shared_metrics
from factorized_fl.silo.columns import TableColumns
from factorized_fl.silo.messages import BadMessage, Message, pack, unpack
from factorized_fl.silo.norms import NORM, Refusal
from factorized_fl.silo.own_part import noise_seed_of, restore, site_federation
from factorized_fl.silo.secret import SecretKeeper, read_table_of
from factorized_fl.silo.sharing import shared_with
from factorized_fl.silo.site_data import NO_COLUMNS, site_scenario, subgroups_tested
from factorized_fl.silo.site_export import effect_over_alone, export_control
from factorized_fl.silo.transport import network
from factorized_fl.simulate.analysis import analyse
from factorized_fl.simulate.build import Federation
from factorized_fl.simulate.private import reserve
from factorized_fl.simulate.rounds import SCORES, all_scores, make_record
from factorized_fl.simulate.run import run_federation, summarise


class Site:
    """A site's state in memory, and on disk after every round."""

    def __init__(
        self,
        kit: Kit,
        data: Path,
        log: Callable[[str], None],
        *,
        columns: TableColumns = NO_COLUMNS,
        device: str = "cpu",
        report: bool,
        metrics: Sequence[str] = (),
    ) -> None:
        self.metrics = metrics  # the metrics that the coordinator may see after the last round
        self.kit, self.log, self.report, self.device = kit, log, report, device
        self.config = kit.config
        self.columns, self.scenario = columns, site_scenario(kit, data, columns)
        self.subgroups = subgroups_tested(data, columns, self.scenario)
        self.secret = SecretKeeper(kit, network().credentials(kit)) if self.config.encrypts else None
        self.federation, self.refusal = self._start(), Refusal()
        self.directory = RunDirectory(kit.run)
        with plain_errors(kit.run):
            kit.run.mkdir(parents=True, exist_ok=True)
        self.done = restore(kit, self.federation, log)
        described = describe_clients(self.federation.scenario)
        self.directory.begin(self.config, describe_environment(self.config.seed, device), described, self.done)
        self.train_images = len(self.federation.scenario.clients[0].train)

    # -- state on disk, which survives a crash

    def _answer_path(self, round_number: int) -> Path:
        return self.directory.path / f"answer-{round_number % 2}.message"

    def _save(self, round_number: int, answer: Message) -> None:
        """Saves a trained round; the checkpoint is written last because it marks the round as complete."""
        write_atomically(self._answer_path(round_number), pack(answer))
        self.directory.keep_previous()
        tensors = self.federation.tensors
        tags = {"federation": self.kit.agreement.id, "digest": digest_of(tensors)}
        self.directory.save_checkpoint(round_number, tensors, **tags)
        self.done = round_number

    def _kept(self, round_number: int) -> Message | None:
        """The saved answer to a request of one of the last two rounds, or None."""
        try:
            content = self._answer_path(round_number).read_bytes()
        except FileNotFoundError:
            return None
        kept = unpack(content, self.kit.agreement.id, len(content))
        return kept if kept.fields.get("request") == f"round-{round_number}" else None

    def _start(self) -> Federation:
        federation = site_federation(self.kit, self.scenario, self.device, "auto", noise_seed_of(self.kit))
        self._attach(federation)
        return federation

    def _attach(self, federation: Federation) -> None:
        """Gives the federation the means to encrypt, if this site has the sites' secret."""
        if self.secret is None or (found := self.secret.secret) is None:
            return
        assert isinstance(federation.server, ServerState)
        initial = federation.server.initial
        shared = {name: initial[name] for name in federation.clients.state.common if name in federation.shared}
        count, minimum = len(self.kit.agreement.sites), self.config.min_peers
        federation.sealer = Sealer(Secret(found), shared, [self.kit.seat], count, min_peers=minimum)

    # -- answers

    def answer(self, request: Message) -> Message:
        """Carries out a request and returns the answer; a request that is not in order is refused in the answer."""
        try:
            if request.kind == "round":
                return self._round(request)
            if request.kind == "loss":
                return self._reply(request, {"loss": self._loss(request)})
            if request.kind == REQUEST:
                kept = self._kept(self.done) if self.done else None
                fields: dict[str, object] = dict(kept.fields) if kept else {"result": "none"}
                return self._reply(
                    request, fields | {"request": request.text("request")}, kept.payload if kept else b""
                )
            if request.kind == "secret":
                return self._exchange(request)
            if request.kind == NORM:
                norm = self.refusal.estimate(request, self.federation.sealer, self.config.rounds)
                return self._reply(request, {"norm": norm})
            if request.kind == "test":
                return self._reply(request, self._test(request))
            raise BadMessage(f"{request.kind[:40]!r} is not a known kind of request")
        except BadMessage as error:
            self.log(f"refused what the coordinator sent: {error}")
            return self._reply(request, {"result": "refused", "reason": str(error)[:200]})

    def _reply(self, request: Message, fields: dict[str, object], payload: bytes = b"") -> Message:
        name = request.fields.get("request")
        return Message("answer", self.kit.agreement.id, {"request": name, **fields}, payload)

    def _round(self, request: Message) -> Message:
        round_number = request.whole("round", low=1, high=self.config.rounds)
        if request.text("request") != f"round-{round_number}":
            raise BadMessage("its name and its round differ")
        if round_number <= self.done:
            if kept := self._kept(round_number):
                self.log(f"answered round {round_number} again from disk")
                return kept
            raise BadMessage(f"round {round_number} is over here: {self.done} rounds are done")
        began = time.monotonic()
        down, received, declined = Load(), dict[str, torch.Tensor](), ""
        if request.fields.get("download"):
            models = request.whole("models", high=10_000)
            try:
                received, load = self._read(round_number, request)
                down = load * models
            except BadMessage as error:
                declined = str(error)
        try:
            trained = self._train(round_number, received)
        except BadMessage as error:
            if not received:
                raise
            declined = str(error)
            trained = self._train(round_number, {}, self._shared())
        if declined:
            self.refusal = Refusal(round_number)
            self.log(f"did not use the coordinator's download of round {round_number}, as {declined}")
        federation, clients, engine = self.federation, self.federation.clients, self.federation.engine
        sent = clients.send([0])
        if federation.sealer is not None:
            sent = federation.sealer.sealed(round_number, [0], sent)
        upload, up = measured(sent, federation.roles)
        result = engine.evaluate(round_number, [0], clients)[0]
        self.directory.save_graded(federation.scenario, {0: result})
        formula = federation.method.card.cost(federation.method, clients.state.client(0), federation.roles)
        share, peers = (0.0, 0.0) if declined else (request.number("from_others"), request.number("peers"))
        record = make_record(round_number, 0, self.kit.party, result, trained, count_traffic(down, up, formula), peers)
        record |= federation.spent(0)
        if round_number == self.config.rounds:
            record[SCORES] = all_scores(federation, round_number, {0: result})[0]
        self.directory.append("metrics.jsonl", [record])
        seconds = time.monotonic() - began
        others = {} if share is None else {self.kit.party: share}
        self.directory.append("timing.jsonl", [{"round": round_number, "seconds": seconds, "from_others": others}])
        fields = {"result": "trained", "round": round_number, "steps": trained.steps, "seconds": seconds}
        fields |= federation.spent(0)  # which follows from public numbers
        fields |= self._reported(round_number, result, trained) | ({"declined": declined[:200]} if declined else {})
        answer = self._reply(request, fields, encode(upload) if upload else b"")
        self._save(round_number, answer)
        told = "" if share is None else f"; {share:.1%} of its download came from other sites"
        self.log(f"trained round {round_number} of {self.config.rounds}: {result.words}{told}")
        return answer

    def _read(self, round_number: int, request: Message) -> tuple[Tensors, Load]:
        """The tensors of a download and their size; raises BadMessage if they are not in order."""
        # The growth of a tensor is measured from its value in `due`.
        extra = self.federation.clients.expected_down | self.federation.clients.class_down
        due = self._shared() | {EXTRA + name: like for name, like in extra.items()}
        sealer = self.federation.sealer
        read = read_tensors(request.payload, due if sealer is None else sealer.due)
        received, load = measured(((name, t[None]) for name, t in read.items()), self.federation.roles)
        return self._opened(round_number, received), load

    def _train(self, round_number: int, received: Tensors, own: Tensors | None = None) -> Trained:
        """Trains from the received tensors, or from its own; goes back and raises BadMessage if training diverges.

        Growth is measured from the received tensors, or from `own` if these are given.
        """
        began_with = {name: tensor.clone() for name, tensor in (own or received).items() if not name.startswith(EXTRA)}
        clients, engine = self.federation.clients, self.federation.engine
        clients.receive(round_number, ((name, tensor[None]) for name, tensor in received.items()), {0: 0}, engine)
        save_classes(self.directory.path, round_number, clients.reports)
        reserve(self.federation.work, [0])
        trained = clients.train(round_number, [0], engine)[0]
        try:
            check_growth({name: self._shared()[name] for name in began_with}, began_with)
        except BadMessage as error:
            if not restore(self.kit, self.federation, self.log):
                self.federation = self._start()
            what = "its own" if own else "the received"
            raise BadMessage(f"training diverges from {what} weights ({error})") from None
        return trained

    def _opened(self, round_number: int, received: Tensors) -> Tensors:
        """The tensors of a download; raises BadMessage if an encrypted one fails a check."""
        sealer = self.federation.sealer
        if sealer is None:
            return received
        items = [(name, tensor[None]) for name, tensor in received.items()]
        try:
            opened = {name: rows[0] for name, rows in sealer.opened(round_number, items, {0: 0}, lambda k: "this site")}
        except BadAggregate as error:
            raise BadMessage(str(error)) from None
        check_growth(opened, self._shared())
        return opened

    def _exchange(self, request: Message) -> Message:
        """A step of the exchange of the sites' secret."""
        step = request.text("step")
        if self.secret is None:
            raise BadMessage("this federation does not encrypt")
        if self.done and self.secret.secret is None:
            self.log("the sites' secret is missing here: asking the other sites for it")
        payload: dict[str, Any] = {}
        if step == "wrap":
            self.secret.make()
            payload = self.secret.wrap(read_table_of(request.payload))
        elif step == "take":
            self.secret.take(read_table_of(request.payload).get(self.kit.party, {}))
        elif step == "offer" and self.secret.secret is None:
            payload = {self.kit.party: self.secret.offer()}
        mark = ""
        if self.secret.secret is not None:
            if self.federation.sealer is None:
                self._attach(self.federation)
                assert self.federation.sealer is not None
                self.log(f"has the sites' secret; all sites must show the mark {self.federation.sealer.secret.mark}")
            mark = self.federation.sealer.secret.mark
        return self._reply(request, {"result": "exchanged", "mark": mark}, json.dumps(payload).encode())

    def _reported(self, round_number: int, result: Evaluated, trained: Trained | None) -> dict[str, object]:
        """The results that the coordinator is sent: none, unless the site chose to report them."""
        shown: dict[str, object] = {}
        if self.metrics and round_number == self.config.rounds and not self.scenario.labels.is_floating_point():
            shown = {CLINICAL: shared_metrics(measure_client(self.federation, 0, round_number), self.metrics)}
        if not self.report:
            return shown
        record = make_record(0, 0, "", result, trained, Traffic())
        return shown | {name: record[name] for name in ("accuracy", "correct", "total", "loss", "train_loss")}

    def _shared(self) -> Tensors:
        return {name: self.federation.clients.state.common[name][0] for name in sorted(self.federation.shared)}

    def _loss(self, request: Message) -> float | None:
        """The loss on held-out images of this site's model with the shared tensors of another site."""
        if not len(self.federation.scenario.clients[0].holdout):
            raise BadMessage("this method holds no images out")
        tensors = read_tensors(request.payload, self._shared())
        asked, path = request.text("request"), self.directory.path / "losses.json"
        known = json.loads(path.read_text()) if path.exists() else {}
        if asked not in known:  # a restarted coordinator may repeat a request after this site has trained on
            candidate = {name: tensor.unsqueeze(0) for name, tensor in tensors.items()}
            (loss,) = self.federation.engine.validation_losses(0, self.federation.clients.state.client(0), candidate)
            round_number = f"loss-{request.whole('round')}-"
            known = {old: value for old, value in known.items() if old.startswith(round_number)}
            known[asked] = loss if abs(loss) < 1e30 else None
            write_atomically(path, json.dumps(known).encode())
        return known[asked]

    def _test(self, request: Message) -> dict[str, object]:
        round_number = request.whole("round", low=1, high=self.config.rounds)
        federation = self.federation
        result = federation.engine.evaluate(round_number, [0], federation.clients)[0]
        self.directory.save_graded(federation.scenario, {0: result})
        if not any(record["round"] == round_number for record in self.directory.metrics()):
            record = make_record(round_number, 0, self.kit.party, result, None, Traffic())
            if round_number == self.config.rounds:
                record[SCORES] = all_scores(federation, round_number, {0: result})[0]
            self.directory.append("metrics.jsonl", [record])
        return {"result": "tested", **self._reported(round_number, result, None)}

    # -- the end

    def finish(self, alone: bool = True) -> Exported | None:
        """Exports the model with its accuracy and, if `alone`, that of a Stand-Alone model; None without a model."""
        if self.done:
            self.directory.save_analysis(analyse(self.federation))
        self.directory.save_summary(summarise(self.directory))
        trained = self.directory.rounds_trained(0, self.done)
        if alone:
            self._train_alone(trained or self.config.rounds)
        if self.done:
            told = shared_with(self.directory.timing(), self.kit.party).words
            self.log(f"{self.kit.party} {told}")
            place, party, effect = self.kit.model, self.kit.party, effect_over_alone(self.kit) if alone else None
            made = (self.federation, 0, self.done, trained, place, party, effect)
            window, groups = self.columns.window, self.subgroups
            exported = export_client(*made, shared=told, subgroups=groups, window=window)
        elif alone:
            self.log("took part in no round: the model is the one that was trained alone")
            exported = export_control(self.kit, self.scenario, self.kit.model, self.columns.window)
        else:
            self.log("took part in no round and trained none alone: there is no model")
            return None
        self.log(f"model: {exported.words} on {exported.images} own test examples")
        return exported

    def _train_alone(self, rounds: int) -> None:
        """Trains the control: the same method, without other sites, for as many rounds as this site trained."""
        self.log(f"training a model alone for {rounds} rounds, to see whether the federation helped")
        config = control_of(replace(self.config, clients=1, fraction=1.0, dropout=0.0, rounds=rounds))
        run_federation(
            config,
            self.kit.alone,
            scenario=self.scenario,
            resume=True,
            device=self.device,
            noise_seed=derive(noise_seed_of(self.kit), "control"),
        )

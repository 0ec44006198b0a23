"""Commands for federations between organisations: serve, join, federation new / status / health / readmit / exclude."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from factorized_fl.cli.common import console, show_warnings_as_notes
from factorized_fl.cli.members import add_commands
from factorized_fl.core.errors import UserError
from factorized_fl.results.schema import COORDINATOR
from factorized_fl.silo import audit, control, journal, status, supervise, watch
from factorized_fl.silo.agreement import AUTHORITY, LOOPBACK, Kit, read_kit
from factorized_fl.silo.clinical import check_shared, reported_table
from factorized_fl.silo.columns import TableColumns
from factorized_fl.silo.preflight import refuse_leftovers, refuse_links
from factorized_fl.silo.settings import Settings, has_settings, read_settings
from factorized_fl.silo.trial import end_trial, make_trial, set_visitors

app = typer.Typer(help="Federations between organisations.", no_args_is_help=True)
add_commands(app)

KitFolder = Annotated[Path, typer.Argument(metavar="KIT", help="The party's kit.")]
SiteData = Annotated[
    Path | None,
    typer.Option("--data", help="Your data: a folder of images per class, parquet files of images, or a table."),
]
Label = Annotated[str | None, typer.Option("--label", help="For a table: the column of labels; default: label.")]
ImageColumn = Annotated[str | None, typer.Option("--image", help="For a table: the column of images.")]
Feature = Annotated[
    list[str] | None,
    typer.Option("--feature", help="For a table: a column of numbers, repeated for each; or one column of arrays."),
]
Split = Annotated[str | None, typer.Option("--split", help="For a table: the column of train, validation, test.")]
GroupColumn = Annotated[
    str | None,
    typer.Option("--group", help="For a table: the column of patients, never divided between training and test."),
]
Subgroup = Annotated[
    list[str] | None,
    typer.Option("--subgroup", help="For a table: a column by which your model's metrics are divided, repeatable."),
]
WindowChoice = Annotated[
    str | None,
    typer.Option("--window", help="LEVEL/WIDTH of grey values in pictures of more than 8 bits, as 40/400."),
]
Report = Annotated[
    bool | None,
    typer.Option("--report-accuracy/--keep-accuracy", help="Let the coordinator see your accuracies; default: no."),
]
Shared = Annotated[
    list[str] | None,
    typer.Option(
        "--share-metrics",
        metavar="METRIC",
        help="A clinical metric that the coordinator may see after the last round, repeated for each: auroc, "
        "sensitivity, specificity, balanced-accuracy, brier, calibration-error, confusion, all; default: none.",
    ),
]
Alone = Annotated[
    bool | None,
    typer.Option("--alone/--no-alone", help="At the end, train a model on your data alone to compare; default: yes."),
]
Limit = Annotated[
    float | None,
    typer.Option(
        "--limit", metavar="MBIT", help="Megabits per second that messages may use each way; 0: no limit.", min=0
    ),
]
MetricsPort = Annotated[
    int | None,
    typer.Option(
        "--metrics",
        metavar="PORT",
        help="Serve /metrics, /healthz, /readyz and a page on this port of 127.0.0.1.",
        min=1,
        max=65535,
    ),
]
DeviceName = Annotated[str | None, typer.Option("--device", help="cpu, cuda or auto.")]


_REVEALED = {
    "statistics": "the coordinator sees how many classes you have and how many images of each, averages of random "
    "features of these images and how they vary, and the tensors that the method shares for each class; no image "
    "and no name.",
    "classifier": "the coordinator sees how many classes you have, the row of the classifier of each, and how "
    "training moves it; no image and no name.",
}


def _show(line: str) -> None:
    console.print(line, highlight=False, soft_wrap=True)


@app.command("new")
def new(
    sites: Annotated[Path, typer.Argument(metavar="sites.toml", help="The sites, and what is trained.")],
    out: Annotated[Path, typer.Option("--out", help="Folder for the kits.")] = Path("kits"),
    own_keys: Annotated[
        bool, typer.Option("--own-keys", help="Each party makes its own key; without it this command makes all keys.")
    ] = False,
) -> None:
    """Make one kit for each party: the agreement, a README, and for trials the keys of all."""
    from factorized_fl.silo.kits import make_kits

    agreement = make_kits(sites, out, own_keys)
    if not own_keys:
        _show("Note: this command makes the private keys of all parties, which suits trials; --own-keys makes none.")
    if agreement.address in LOOPBACK:
        _show(f"Note: the sites will look for the coordinator at {agreement.address}: this works on one machine only.")
    for party in (COORDINATOR, *agreement.sites):
        _show(f"{out / party}: give this folder to {party}, over a channel that you trust")
    _show(f"{out / AUTHORITY}: do not give this folder to anyone")


def serve(
    kit: KitFolder,
    visitors: Annotated[
        bool, typer.Option("--visitors", help="After the last round, let new sites try the federation, until Ctrl-C.")
    ] = False,
    metrics: MetricsPort = None,
) -> None:
    """Coordinate a federation. Stop with Ctrl-C; repeat to continue."""
    party = read_kit(kit)
    if not party.is_coordinator:
        raise UserError(f"'{kit}' is the kit of the site {party.party}: use `ffl join`.")
    set_visitors(party, visitors)
    _run(party, metrics)
    _show(f"Complete. The coordinator's run directory: {party.run}")


def join(
    kit: KitFolder,
    data: SiteData = None,
    label: Label = None,
    image: ImageColumn = None,
    feature: Feature = None,
    split: Split = None,
    group: GroupColumn = None,
    subgroup: Subgroup = None,
    window: WindowChoice = None,
    report_accuracy: Report = None,
    share_metrics: Shared = None,
    alone: Alone = None,
    device: DeviceName = None,
    limit: Limit = None,
    metrics: MetricsPort = None,
) -> None:
    """Take part in a federation with your own data. Stop with Ctrl-C; repeat to continue."""
    party = read_kit(kit)
    if party.is_coordinator:
        raise UserError(f"'{kit}' is the coordinator's kit: use `ffl serve`.")
    if not status.is_done(party):
        columns = {"label": label, "image": image, "features": tuple(feature or ()), "split": split}
        columns |= {"group": group, "subgroups": tuple(subgroup or ()), "window": window}
        named = {name: value for name, value in columns.items() if value}
        shared = None if share_metrics is None else check_shared(share_metrics)
        choices = site_choices(party, data, report_accuracy, alone, device, limit, named, shared=shared)
        supervise.save_choices(party, choices)
        _run(party, metrics)
    model = f"Your model: {party.model}" if party.model.is_dir() else "You took part in no round and have no model"
    _show(f"Done. {model}; the metrics of all rounds: {party.run}")


def _run(party: Kit, metrics: int | None = None) -> None:
    with watch.serving(party, metrics) as url:
        if url:
            _show(f"Page, health and metrics of {party.party}: {url}")
        ended = supervise.supervise(party, _show)
    if not ended:
        _show("Stopped: nothing is lost, repeat the command to continue.")
        raise typer.Exit(130)


class Found(NamedTuple):
    """A site's data in words, and the device that it trains on."""

    line: str
    device: str


def check_data(kit: Path, data: Path, device: str, columns: TableColumns) -> Found:
    """Read a site's data; raises UserError if they cannot be used or are not those of earlier rounds."""
    from factorized_fl.report.progress import reporting_images
    from factorized_fl.silo.own_part import site_federation
    from factorized_fl.silo.site_data import site_scenario
    from factorized_fl.simulate.run import find_device

    party = read_kit(kit)
    with reporting_images(console):
        scenario = site_scenario(party, data, columns)
    site_federation(party, scenario)
    (client,) = scenario.clients
    what = "examples" if scenario.arrays else "images"
    outputs = "numbers to predict" if scenario.labels.is_floating_point() else "classes"
    training = f"{len(client.classes)} {outputs}, {len(client.train)} {what} to train"
    line = f"{party.party}: {training}, {len(client.validation)} to validate, {len(client.test)} to test"
    return Found(line, find_device(device))


def check_data_in_child(kit: Path, data: Path, device: str, columns: TableColumns) -> Found:
    """Check a site's data in another process: this one supervises for days, and stays small without PyTorch."""
    with ProcessPoolExecutor(1, get_context("spawn"), show_warnings_as_notes) as process:
        try:
            return process.submit(check_data, kit, data, device, columns).result()
        except BrokenProcessPool:
            why = "perhaps there is too little memory: free some, or agree on a smaller image_size"
            raise UserError(f"The process that read '{data}' was killed; {why}.") from None


def site_choices(
    party: Kit,
    data: Path | None,
    report: bool | None,
    alone: bool | None,
    device: str | None,
    limit: float | None = None,
    columns: Mapping[str, Any] | None = None,
    check: Callable[[Path, Path, str, TableColumns], Found] = check_data_in_child,
    shared: Sequence[str] | None = None,
) -> Settings:
    """A site's choices, after a check of its data; those that are not given stay as they were."""
    supervise.refuse_running(party)
    refuse_links(party)
    joined = has_settings(party)
    if not joined:
        refuse_leftovers(party)
    before = read_settings(party) if data is None or joined else Settings(data, "auto")
    if joined:
        _show(f"{party.party} has joined before with this kit, with the data in {before.data}")
    data = data or before.data
    same = joined and data.resolve() == before.data
    named = replace(before.columns if same else TableColumns(), **columns or {})
    found = check(party.path, data, device or before.device, named)
    if report is None and before.report:  # the maker of the kit may have put this choice there
        _show(f"{party.party} reports its accuracies, as site.toml in its kit says: --keep-accuracy keeps them here")
    report = before.report if report is None else report
    alone = before.alone if alone is None else alone
    _show(found.line)
    if told := _REVEALED.get(str(party.table.get("align"))):
        _show(
            f"This federation matches the classes of its sites: {told} Other sites see which of "
            "their classes you have, by number. docs/classes.md has details."
        )
    metrics = before.metrics if shared is None else tuple(shared)
    if metrics:
        _show(f"After the last round the coordinator sees of your test images: {', '.join(metrics)}.")
    return Settings(data, found.device, report, alone, before.limit if limit is None else limit, named, metrics)


@app.command("try")
def try_federation(
    kit: KitFolder,
    data: Annotated[Path, typer.Option("--data", help="Your images: a folder per class, or parquet.")],
    device: DeviceName = None,
) -> None:
    """Try a finished federation before you join it: train with its tensors, and alone. It keeps nothing of you."""
    party = read_kit(kit)
    supervise.refuse_running(party)
    trial = make_trial(party)
    supervise.save_choices(trial, site_choices(trial, data, False, True, device))
    _run(trial)
    _show(end_trial(trial))


@app.command("status")
def show_status(kit: KitFolder) -> None:
    """Show the sites, the round, reported accuracies and the time left."""
    party = read_kit(kit)
    runs = supervise.is_running(party)
    _show("\n".join(status.status_lines(party, runs)))
    for table in (status.sites_table(party, runs), reported_table(party)):
        if table:
            console.print(table)
    for line in journal.last_lines(party):
        _show(line)


@app.command("health")
def health(
    kit: KitFolder,
    ready: Annotated[bool, typer.Option("--ready", help="Also require that a site reaches its coordinator.")] = False,
) -> None:
    """Exit with 0 if the party runs on this machine and reports, else with 1: for the probes of a service manager."""
    party = read_kit(kit)
    if found := status.problem(party, supervise.is_running(party), ready):
        _show(f"{party.party}: {found}")
        raise typer.Exit(1)
    _show(f"{party.party}: in order")


@app.command("readmit")
def readmit(kit: KitFolder, site: Annotated[str, typer.Argument(metavar="SITE")]) -> None:
    """End the quarantine of a site, so that it takes part again."""
    _ask(kit, "readmit", site)
    _show(f"{site} will be asked again.")


@app.command("exclude")
def exclude(kit: KitFolder, site: Annotated[str, typer.Argument(metavar="SITE")]) -> None:
    """Exclude a harmful site: it gets no more requests, and its tensors are sent to no other site."""
    _ask(kit, "exclude", site)
    _show(f"{site} will be left out; `ffl federation readmit` lets it in again.")


@app.command("audit")
def audit_log(kit: KitFolder) -> None:
    """Verify the audit log of a party, which records its messages, refusals and decisions."""
    party = read_kit(kit)
    found = audit.verify(party)
    counts = ", ".join(f"{count} {event}" for event, count in sorted(found.events.items()))
    _show(f"{party.party} of {party.agreement.name}: {found.lines} lines, the chain is unbroken ({counts})")
    _show(f"Digest of the last line: {found.last}")


def _ask(kit: Path, kind: str, site: str) -> None:
    party = read_kit(kit)
    if not party.is_coordinator or site not in party.agreement.sites:
        raise UserError(f"Only the coordinator can {kind}, and only one of {', '.join(party.agreement.sites)}.")
    control.ask(party, kind, site)

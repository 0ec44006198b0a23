"""Commands for federations between organisations: federation new / start / status / stop / readmit / exclude, serve,
join."""

from pathlib import Path
from typing import Annotated

import typer

from factorized_fl.cli.common import console
from factorized_fl.core.errors import UserError
from factorized_fl.report.progress import images_told
from factorized_fl.silo import control, kits, status, supervise
from factorized_fl.silo.plan import COORDINATOR, LOOPBACK, Kit, read_kit
from factorized_fl.silo.preflight import refuse_leftovers, refuse_links
from factorized_fl.silo.settings import Settings, has_settings, read_settings
from factorized_fl.silo.site import site_federation, site_scenario
from factorized_fl.simulate.run import find_device

app = typer.Typer(help="Federations between organisations.", no_args_is_help=True)

KitFolder = Annotated[Path, typer.Argument(metavar="KIT", help="The party's kit.")]
SiteData = Annotated[Path | None, typer.Option("--data", help="Your images: a folder per class, or parquet.")]
Report = Annotated[
    bool | None,
    typer.Option("--report-accuracy/--keep-accuracy", help="Let the coordinator see your accuracies; default: no."),
]
Alone = Annotated[
    bool | None,
    typer.Option("--alone/--no-alone", help="Train a model alone at the end, to compare with; default: yes."),
]
DeviceName = Annotated[str | None, typer.Option("--device", help="cpu, cuda or auto.")]


def _show(line: str) -> None:
    console.print(line, highlight=False, soft_wrap=True)


@app.command("new")
def new(
    sites: Annotated[Path, typer.Argument(metavar="sites.toml", help="Who takes part and what is trained.")],
    out: Annotated[Path, typer.Option("--out", help="Folder for the kits.")] = Path("kits"),
) -> None:
    """Make one kit for each party: certificates, the agreement, a README."""
    plan = kits.make_kits(sites, out)
    if plan.address in LOOPBACK:
        _show(f"Note: the sites will look for the coordinator at {plan.address}, so this works on one machine only.")
    for party in (COORDINATOR, *plan.sites):
        _show(f"{out / party}: give this folder to {party}, over a channel that you trust")
    _show(f"{out / 'authority'}: keep this one to yourself")


def serve(kit: KitFolder) -> None:
    """Coordinate a federation until all rounds are done; after a crash it goes on where it was."""
    party = read_kit(kit)
    if not party.is_coordinator:
        raise UserError(f"'{kit}' is the kit of the site {party.party}: use `ffl join`.")
    if not supervise.supervise(party, _show):
        raise _stopped()
    _show(f"Complete. The coordinator's run directory: {party.run}")


def join(
    kit: KitFolder,
    data: SiteData = None,
    report_accuracy: Report = None,
    alone: Alone = None,
    device: DeviceName = None,
) -> None:
    """Take part in a federation with your own images until all rounds are done; joining again goes on as before."""
    party = _site(kit)
    if not status.is_done(party):
        supervise.settle(party, _choose(party, data, report_accuracy, alone, device))
        if not supervise.supervise(party, _show):
            raise _stopped()
    found = f"Your model: {party.model}" if party.model.is_dir() else "You took part in no round and have no model"
    _show(f"Done. {found}; how it went: {party.run}")


def _stopped() -> typer.Exit:
    _show("Stopped: nothing is lost, start again to go on.")
    return typer.Exit(130)


def _site(kit: Path) -> Kit:
    party = read_kit(kit)
    if party.is_coordinator:
        raise UserError(f"'{kit}' is the coordinator's kit: use `ffl serve`.")
    return party


def _choose(party: Kit, data: Path | None, report: bool | None, alone: bool | None, device: str | None) -> Settings:
    """The site's choices, after a look at its data before anybody waits for it; what is not given stays as it was."""
    supervise.refuse_running(party)
    refuse_links(party)
    joined = has_settings(party)
    if not joined:
        refuse_leftovers(party)
    before = read_settings(party) if data is None or joined else Settings(data, "auto")
    if joined:
        _show(f"{party.party} has joined before with this kit, with the data in {before.data}")
    data = data or before.data
    with images_told(console):
        scenario = site_scenario(party.config, party.party, party.seat, data)
    site_federation(party, scenario)
    (client,) = scenario.clients
    if report is None and before.report:  # perhaps whoever made the kit chose that
        _show(f"{party.party} reports its accuracies, as site.toml in its kit says: --keep-accuracy keeps them here")
    report = before.report if report is None else report
    alone = before.alone if alone is None else alone
    settings = Settings(data, find_device(device or before.device), report, alone)
    _show(
        f"{party.party}: {len(client.classes)} classes, {len(client.train)} images to train, "
        f"{len(client.validation)} to validate, {len(client.test)} to test"
    )
    return settings


@app.command("start")
def start(
    kit: KitFolder,
    data: SiteData = None,
    report_accuracy: Report = None,
    alone: Alone = None,
    device: DeviceName = None,
) -> None:
    """Start a party in the background: `serve` or `join`, whichever its kit is for."""
    party = read_kit(kit)
    if not party.is_coordinator:
        if status.is_done(party):
            raise UserError(f"{party.party} is done: its model is in '{party.model}'.")
        supervise.settle(party, _choose(party, data, report_accuracy, alone, device))
    supervise.start_in_background(party)
    _show(f"{party.party} is starting: see `ffl federation status {kit}`.")


@app.command("status")
def show_status(kit: KitFolder) -> None:
    """Who is connected, which round it is, what was reported, how long it may take."""
    party = read_kit(kit)
    runs = bool(supervise.processes(party))
    for line in status.status_lines(party, runs):
        _show(line)
    if table := status.sites_table(party, runs):
        console.print(table)
    for line in status.last_lines(party):
        _show(line)


@app.command("stop")
def stop(kit: KitFolder) -> None:
    """Stop a party that runs; nothing is lost, start it again to go on."""
    party = read_kit(kit)
    supervise.stop(party)
    _show(f"{party.party} has stopped.")


@app.command("readmit")
def readmit(kit: KitFolder, site: Annotated[str, typer.Argument(metavar="SITE")]) -> None:
    """Let a site in again that was set aside for bad updates."""
    _ask(kit, "readmit", site)
    _show(f"{site} will be asked again.")


@app.command("exclude")
def exclude(kit: KitFolder, site: Annotated[str, typer.Argument(metavar="SITE")]) -> None:
    """Leave a site out that does harm: it is asked for nothing more, and nobody is given what it sent."""
    _ask(kit, "exclude", site)
    _show(f"{site} will be left out; `ffl federation readmit` lets it in again.")


def _ask(kit: Path, kind: str, site: str) -> None:
    party = read_kit(kit)
    if not party.is_coordinator or site not in party.plan.sites:
        raise UserError(f"Only the coordinator can {kind}, and only one of {', '.join(party.plan.sites)}.")
    control.ask(party, kind, site)

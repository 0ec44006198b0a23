"""Commands for keys and members of a federation: request, approve, install, add, revoke."""

from pathlib import Path
from typing import Annotated

import typer

from factorized_fl.cli.common import console
from factorized_fl.silo import keys
from factorized_fl.silo.agreement import read_kit

AuthorityFolder = Annotated[Path, typer.Argument(metavar="AUTHORITY", help="The folder of the authority.")]
KitFolder = Annotated[Path, typer.Argument(metavar="KIT", help="The party's kit.")]


def _show(line: str) -> None:
    console.print(line, highlight=False, soft_wrap=True)


def request_command(
    kit: KitFolder,
    out: Annotated[Path | None, typer.Option("--out", help="File to write; default: KIT/PARTY.request.")] = None,
    new_key: Annotated[bool, typer.Option("--new-key", help="Make a new key, used from its approval on.")] = False,
) -> None:
    """Make the party's key, if it has none, and a request for its certificate; also to renew it."""
    party = read_kit(kit)
    out = out or party.path / f"{party.party}.request"
    printed = keys.make_request(party, out, new_key)
    _show(f"{out}: send this file to the authority. It is no secret; the private key stays in this kit.")
    _show(f"Fingerprint of the key, to compare by telephone: {printed}")


def approve_command(
    authority: AuthorityFolder,
    party: Annotated[str, typer.Argument(metavar="PARTY", help="The party that sent the request.")],
    request: Annotated[Path, typer.Argument(metavar="REQUEST")],
    out: Annotated[Path | None, typer.Option("--out", help="File to write; default: PARTY.approval.")] = None,
    days: Annotated[float, typer.Option("--days", help="Days for which the certificate is valid.", min=0.01)] = 90.0,
    new_key: Annotated[bool, typer.Option("--new-key", help="Accept a key that differs from the last one.")] = False,
) -> None:
    """Sign a party's request: its certificate, which the party installs."""
    from factorized_fl.silo import authority as office

    out = out or Path(f"{party}.approval")
    printed = office.approve(authority, party, request, out, days, new_key)
    _show(f"{out}: send this file to {party}. Fingerprint of its key: {printed}")


def install_command(kit: KitFolder, file: Annotated[Path, typer.Argument(metavar="FILE")]) -> None:
    """Use an approval or a notice of members from the authority; a running party starts again with it."""
    _show(keys.install(read_kit(kit), file))


def add_command(
    authority: AuthorityFolder,
    site: Annotated[str, typer.Argument(metavar="SITE")],
    out: Annotated[Path, typer.Option("--out", help="Folder for the new kit and the notice.")] = Path(),
) -> None:
    """Make a site a member: writes its kit, without a key, and a notice for the coordinator."""
    from factorized_fl.silo import authority as office
    from factorized_fl.silo.kits import write_keyless

    register = office.add(authority, site)
    if not (out / site).exists():
        write_keyless(office.kit_of(register, out / site, site), (authority / office.ROOT).read_bytes())
    _show(f"{out / site}: give this folder to {site}, which makes its key with `ffl federation request`")
    _tell_coordinator(authority, out)


def revoke_command(
    authority: AuthorityFolder,
    site: Annotated[str, typer.Argument(metavar="SITE")],
    out: Annotated[Path, typer.Option("--out", help="Folder for the notice.")] = Path(),
) -> None:
    """Revoke a site: writes a notice for the coordinator, which then sends the site nothing more."""
    from factorized_fl.silo import authority as office

    office.revoke(authority, site)
    _tell_coordinator(authority, out)


def extend_command(
    authority: AuthorityFolder,
    rounds: Annotated[int, typer.Option("--rounds", help="Total number of rounds, with those already done.", min=1)],
    out: Annotated[Path, typer.Option("--out", help="Folder for the notice.")] = Path(),
) -> None:
    """Raise the number of rounds, also after the end: writes a notice that every party installs."""
    from factorized_fl.silo import authority as office

    office.extend(authority, rounds)
    office.write_notice(authority, out / keys.NOTICE)
    _show(f"{out / keys.NOTICE}: send this file to all parties, for `ffl federation install`")


def _tell_coordinator(authority: Path, out: Path) -> None:
    from factorized_fl.silo.authority import write_notice

    write_notice(authority, out / keys.NOTICE)
    _show(f"{out / keys.NOTICE}: send this file to the coordinator, for `ffl federation install`")


def add_commands(app: typer.Typer) -> None:
    """Add these commands to `ffl federation`."""
    for name, command in (
        ("request", request_command),
        ("approve", approve_command),
        ("install", install_command),
        ("add", add_command),
        ("revoke", revoke_command),
        ("extend", extend_command),
    ):
        app.command(name)(command)

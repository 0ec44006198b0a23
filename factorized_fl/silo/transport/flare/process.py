"""The process of a party: it adapts FLARE, then runs FLARE's own program, which builds this package's component."""

import contextlib
import importlib
import importlib.metadata
import runpy
import sys
from pathlib import Path

from factorized_fl.core.errors import UserError
from factorized_fl.silo.agreement import Kit, read_kit
from factorized_fl.silo.journal import Journal
from factorized_fl.silo.status import write_status
from factorized_fl.silo.transport import FINAL
from factorized_fl.silo.transport.flare.setup import VERSIONS, program


def adapt_flare(sites: int = 0) -> None:
    """Close the gate, and make room for so many sites; raises UserError if the installed FLARE differs inside."""
    try:
        importlib.import_module("factorized_fl.silo.transport.flare.gate").close()
        if sites:
            importlib.import_module("factorized_fl.silo.transport.flare.capacity").serve_sites(sites)
    except (ImportError, AttributeError) as error:
        version = importlib.metadata.version("nvflare")
        raise UserError(
            f'FLARE {version} cannot be used safely, because it differs inside from "{VERSIONS}" ({error}): '
            f'pip install "{VERSIONS}".'
        ) from None


def allow_many_connections() -> None:
    """Raise the limit of open files as far as this user may: idle connections of strangers use it up for a while."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource  # not on Windows

        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def run_party(kit: Kit) -> None:
    """Run FLARE until the party is done; exits with FINAL, after a line in the journal, if it cannot start."""
    try:
        allow_many_connections()
        adapt_flare(len(kit.agreement.sites) if kit.is_coordinator else 0)
        if kit.is_coordinator:
            _ = kit.config  # a site's trainer reads it
    except UserError as error:
        Journal(kit)(f"Error: {error}")
        write_status(kit, str(error))
        sys.exit(FINAL)
    module, *sys.argv[1:] = program(kit)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    run_party(read_kit(Path(sys.argv[1])))

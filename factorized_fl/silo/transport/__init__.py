"""The interface of transports between coordinator and sites, and the choice of one.

A site asks and the coordinator answers: questions and answers are bytes, whose meaning the transport does not know. It
encrypts them, and it authenticates the site that asks. Sites only connect outwards.
"""

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from factorized_fl.silo.agreement import Agreement, Kit

FINAL = 77  # exit code of a party's process that would fail in the same way if it were started again


class CannotContinue(Exception):
    """The party would fail in the same way if it were started again; the text gives the reason."""


class Unreachable(Exception):
    """The coordinator gave no answer; the text gives the reason."""


class Line(Protocol):
    """A site's connection to the coordinator."""

    def ask(self, question: bytes, seconds: float) -> bytes:
        """The coordinator's answer; raises Unreachable if there is none within so many seconds."""


class Credentials(NamedTuple):
    """The files by which a party authenticates itself and recognises the others."""

    certificate: Path
    key: Path
    root: Path


class Transport(Protocol):
    """The preparation and the process of a party, for a transport between machines."""

    def require_installed(self) -> None:
        """Raise UserError if the transport's library is missing."""

    def make_credentials(self, agreement: Agreement, out: Path) -> None:
        """Write every party's credentials to its folder in `out`, and the authority's key to a folder beside them."""

    def make_root(self, name: str, key: Any, begin: datetime, end: datetime) -> bytes:
        """The certificate of an authority with this private key, as PEM."""

    def make_certificate(
        self, party: str, agreement: Agreement, public: Any, key: bytes, root: bytes, begin: datetime, end: datetime
    ) -> bytes:
        """The certificate of a party's public key, signed with the authority's key, as PEM."""

    def credentials(self, kit: Kit) -> Credentials:
        """The paths of a party's credentials in its kit."""

    def prepare(self, kit: Kit) -> None:
        """Write the files of the party's process to the kit, replacing those of an earlier start."""

    def command(self, kit: Kit) -> list[str]:
        """The arguments to Python that start the party's process."""

    def refusal(self, line: str) -> str | None:
        """The reason why a connection was refused, if this line of the process's log reports that; else None."""

    def environment(self, kit: Kit) -> Mapping[str, str]:
        """The environment variables that the party's process needs."""


def network() -> Transport:
    """The transport between machines."""
    from factorized_fl.silo.transport.flare import setup

    return setup

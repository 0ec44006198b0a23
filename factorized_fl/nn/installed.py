"""Networks of installed packages, which declare the factories that an agreement or an exported model may name.

A package declares them as entry points, in its pyproject.toml:

    [project.entry-points."factorized_fl.models"]
    net = "mynets:Net"

An agreement comes from another party, so it can only name factories that an installed package declares.
"""

from dataclasses import dataclass
from importlib.metadata import entry_points

from factorized_fl.core.errors import UserError
from factorized_fl.nn.own import Factory, import_factory

GROUP = "factorized_fl.models"


@dataclass(frozen=True)
class InstalledModel:
    """A declared factory, and the installed package that declares it."""

    name: str  # "package.module:factory"
    package: str
    version: str

    def factory(self) -> Factory:
        """Return the class or function; raise UserError if it cannot be imported."""
        return import_factory(self.name)


def find_installed(name: str) -> InstalledModel:
    """Return the factory "package.module:factory"; raise UserError if no installed package declares it."""
    points = list(entry_points(group=GROUP))
    for point in points:
        if point.value.replace(" ", "") == name and point.dist is not None:
            return InstalledModel(name, point.dist.name, point.dist.version)
    found = f"declared here are {', '.join(sorted({point.value for point in points}))}" if points else "none is"
    raise UserError(
        f"No installed package declares the model '{name}' as an entry point in '{GROUP}' ({found}): "
        "install the package that has it, or add the entry point to its pyproject.toml."
    )

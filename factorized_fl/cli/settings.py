"""Options of a run that are given as options of a command, such as --seed 3: the error names the right form."""

import dataclasses
from typing import Any

from typer.core import TyperCommand

from factorized_fl.config import Config
from factorized_fl.core.errors import UserError


class SettingsCommand(TyperCommand):
    """A command with --set, whose errors give the right form of a run's option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse as usual; raises a UserError for an option of a run without --set."""
        known = {option for parameter in self.params for option in parameter.opts}
        fields = {field.name for field in dataclasses.fields(Config)} - {"preset", "options"}
        for index, word in enumerate(args):
            option, equals, value = word.partition("=")
            name = option.removeprefix("--").replace("-", "_")
            if option in ("--seeds", "--methods") and option not in known:
                raise UserError(f"There is no option {option} here: several runs are made by `ffl compare`.")
            if option in known or not option.startswith("--") or name not in fields:
                continue
            value = value if equals else next(iter(args[index + 1 :]), "...")
            form = f"{option}s {value}" if f"{option}s" in known else f"--set {name}={value}"
            if self.name == "demo" and name in ("seed", "method"):  # the demo has its own
                form = f"`ffl compare demo {option}s {value}`"
            raise UserError(f"There is no option {option}: write {form}.")
        return super().parse_args(ctx, args)

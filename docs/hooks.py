"""Hooks of mkdocs: pages that are generated from the code, and links to files outside the documentation."""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from typer.main import get_command

import factorized_fl
from factorized_fl.cli import app
from factorized_fl.core.toml_text import to_toml_value
from factorized_fl.report.available import method_records, run_options


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the generated pages."""
    for name, lines in (("options", options_page()), ("commands", commands_page()), ("python", python_page())):
        files.append(File.generated(config, f"reference/{name}.md", content="\n".join(lines) + "\n"))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replaces a link to a file outside the documentation by the file's path in the source tree."""
    depth = page.file.src_uri.count("/")
    outside = re.compile(rf"\[([^\]]+)\]\((?:\.\./){{{depth + 1}}}([^).#][^)#]*)[^)]*\)")
    return outside.sub(_as_path, markdown)


def _as_path(link: re.Match[str]) -> str:
    text, path = link.groups()
    return f"`{path}`" if path.endswith(text.strip("`")) else f"{text} (`{path}` in the source tree)"


def options_page() -> Iterator[str]:
    """The page of all options of runs and methods."""
    yield "# Options\n"
    yield "Set an option with `--set NAME=VALUE` on the command line, as a line of a configuration file, or as an"
    yield "argument of `ffl.run`. `ffl options METHOD` prints the same lists.\n"
    yield "## Options of every run\n"
    yield from _table(run_options())
    for record in method_records(options=True):
        own = record["options"]
        if own:
            yield f"\n## {record['name']}\n\n{record['sentence']}\n"
            yield from _table(own)


def _table(records: Iterable[dict[str, Any]]) -> Iterator[str]:
    yield '<div class="stacked" markdown>\n'  # site.css shows its rows as blocks on a phone
    yield "| option | default | meaning | values |"
    yield "|---|---|---|---|"
    for record in records:
        meaning = str(record["meaning"]).replace("|", "\\|")
        limits = str(record["limits"] or record["type"]).replace("|", "\\|")
        yield f"| `{record['name']}` | `{to_toml_value(record['default'])}` | {meaning} | {limits} |"
    yield "\n</div>"


def commands_page() -> Iterator[str]:
    """The page of all commands with their arguments and options."""
    yield "# Commands\n"
    yield "`ffl COMMAND --help` prints the same. Every command ends with exit code 0, or with one sentence and a code"
    yield "of the [list of exit codes](exit-codes.md).\n"
    yield from _command("ffl", get_command(app), 2)


def _command(path: str, command: Any, level: int) -> Iterator[str]:
    commands = getattr(command, "commands", {})
    yield f"{'#' * level} `{path}`\n\n{(command.help or '').strip()}\n"
    shown = [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]
    if shown:
        yield "| argument | meaning |"
        yield "|---|---|"
        for parameter in shown:
            meaning = (getattr(parameter, "help", None) or "").replace("|", "\\|")
            yield f"| `{_spelling(parameter)}` | {meaning} |"
        yield ""
    for name, inner in commands.items():
        if not inner.hidden:
            yield from _command(f"{path} {name}", inner, min(level + 1, 4))


def _spelling(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return parameter.metavar or parameter.name.upper()
    return ", ".join([*parameter.opts, *parameter.secondary_opts])


def python_page() -> Iterator[str]:
    """The page of the public Python names, from their docstrings."""
    yield "# Python\n"
    yield "All names below are attributes of the package: `import factorized_fl as ffl`.\n"
    for module, names in factorized_fl._MODULES.items():
        for name in names:
            yield f"::: factorized_fl.{module}.{name}\n"

"""One HTML file of run directories that opens anywhere, without a network.

The charts are our own JavaScript over SVG (assets/) rather than a plotting library: the package writes a page after
every run and should not depend on one, plotly's bundle alone would add 1 to 4.5 MB to each page, and heat maps with a
slider, a graph and a sortable table need little of it.

Names come from user data. They enter the page as JSON in which no character can end the element, and the script inserts
them as text only. The content security policy allows this script and this style, by hash, and no connections except,
while watching, to the page's own server.
"""

import base64
import hashlib
import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from factorized_fl.core.files import plain_errors, write_atomically
from factorized_fl.report.collect import Document, collect

PAGE = "report.html"
_SCRIPTS = (
    *("tools.js", "charts.js", "maps.js", "spreads.js", "parts.js"),
    *("verdict.js", "accuracy.js", "exchange.js", "inside.js", "comparison.js", "main.js"),
)


def write_report(paths: Sequence[Path], out: Path | None = None, baseline: Path | None = None) -> Path:
    """Write one page for run directories, or folders of them, and return its path.

    Without `out` it is report.html, inside the path if a single one is given.
    """
    page = render_page(collect(paths, baseline))
    target = out or (paths[0] / PAGE if len(paths) == 1 else Path(PAGE))
    if target.is_dir():
        target = target / PAGE
    with plain_errors(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(target, page.encode())
    return target


def render_page(document: Document) -> str:
    """Return the page as HTML."""
    style = _asset("page.css")
    script = '"use strict";\n(() => {\n' + "\n".join(_asset(name) for name in _SCRIPTS) + "\n})();\n"
    comparison = document["comparison"]
    headlines = [comparison["headline"]] if comparison else [run["headline"] for run in document["runs"]]
    template = Environment(autoescape=True, undefined=StrictUndefined).from_string(_asset("page.html"))
    return template.render(
        policy=Markup(policy(style, script, live=document["live"])),
        title=document["title"],
        summary=" ".join(headlines),
        style=Markup(style),
        script=Markup(script),
        document=Markup(embed(document)),
    )


def embed(document: Document) -> str:
    """Return JSON that is safe inside a script element: without <, > and &, and without NaN."""
    text = json.dumps(document, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def policy(style: str, script: str, live: bool) -> str:
    """Return the content security policy: this script, this style and images that the script draws."""
    return (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data: blob:; "
        f"connect-src '{'self' if live else 'none'}'; base-uri 'none'; form-action 'none'"
    )


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def _asset(name: str) -> str:
    return resources.files("factorized_fl.report").joinpath("assets", name).read_text(encoding="utf-8")

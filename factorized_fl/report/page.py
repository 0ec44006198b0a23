"""From the document to one HTML file that opens anywhere, without a network.

The charts are some hundred lines of our own JavaScript over SVG (assets/), not a plotting library: the core writes a
page after every run and must not depend on one, plotly's bundle alone would be 1 to 4.5 MB a page, and heat-maps of
clients with a slider, a graph and a table that sorts need little of what it offers.

Names come from other people's data. They enter the page as JSON in which no character can end the element, and the
script puts them in as text only. The content security policy allows this one script and this one style, by hash, and no
connection anywhere (while watching: to the page's own server).
"""

import base64
import hashlib
import html
import json
from importlib import resources

from factorized_fl.report.collect import Document

_SCRIPTS = (
    *("tools.js", "charts.js", "maps.js", "spreads.js", "parts.js"),
    *("verdict.js", "accuracy.js", "exchange.js", "inside.js", "comparison.js", "main.js"),
)


def render_page(document: Document) -> str:
    """The whole page."""
    style = _asset("page.css")
    script = '"use strict";\n(() => {\n' + "\n".join(_asset(name) for name in _SCRIPTS) + "\n})();\n"
    comparison = document["comparison"]
    headlines = [comparison["headline"]] if comparison else [run["headline"] for run in document["runs"]]
    values = {
        "policy": policy(style, script, live=document["live"]),
        "title": html.escape(document["title"]),
        "summary": html.escape(" ".join(headlines)),
        "style": style,
        "script": script,
        "document": embed(document),
    }
    page = _asset("page.html")
    # One pass from left to right, so that nothing inside a value is taken for a place to fill.
    parts = page.split("{{")
    return parts[0] + "".join(values[name] + rest for name, rest in (part.split("}}", 1) for part in parts[1:]))


def embed(document: Document) -> str:
    """JSON that is safe inside a script element: no <, > or &, and no number that JSON does not have."""
    text = json.dumps(document, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def policy(style: str, script: str, live: bool) -> str:
    """What the page may do: nothing but this script and this style, and pictures it draws itself."""
    connect = "'self'" if live else "'none'"
    return (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data: blob:; "
        f"connect-src {connect}; base-uri 'none'; form-action 'none'"
    )


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def _asset(name: str) -> str:
    return resources.files("factorized_fl.report").joinpath("assets", name).read_text(encoding="utf-8")

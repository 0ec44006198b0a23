"""One HTML file with its style, its script and its document.

Names come from user data. They enter the page as JSON in which no character can end the element, and the script inserts
them as text only. The content security policy allows this script and this style, by hash, and no connections except,
while watching, to the page's own server. This module does not import PyTorch.
"""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any


def single_file(
    title: str, summary: str, document: Mapping[str, Any], style: str, scripts: Sequence[str], *, live: bool
) -> str:
    """Return a page as HTML: `summary` is for browsers without JavaScript, `live` lets the script ask its server."""
    from jinja2 import Environment, StrictUndefined  # imported here because runs load this module and write no page
    from markupsafe import Markup

    script = '"use strict";\n(() => {\n' + "\n".join(scripts) + "\n})();\n"
    template = Environment(autoescape=True, undefined=StrictUndefined).from_string(page_asset("page.html"))
    return template.render(
        policy=Markup(_policy(style, script, live)),
        title=title,
        summary=summary,
        style=Markup(style),
        script=Markup(script),
        document=Markup(embed(document)),
    )


def page_asset(name: str) -> str:
    """Return a style sheet, a script or a template of the report's page."""
    return resources.files("factorized_fl.report").joinpath("assets", name).read_text(encoding="utf-8")


def embed(document: Mapping[str, Any]) -> str:
    """Return JSON that is safe inside a script element: without <, > and &, and without NaN."""
    text = json.dumps(document, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _policy(style: str, script: str, live: bool) -> str:
    """Return the content security policy: this script, this style and images that the script draws."""
    return (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data: blob:; "
        f"connect-src '{'self' if live else 'none'}'; base-uri 'none'; form-action 'none'"
    )


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"

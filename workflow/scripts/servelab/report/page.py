"""A self-contained page: template, style sheet, fonts and scripts in one file under a strict security policy."""

import base64
import gzip
import hashlib
import json
from collections.abc import Mapping
from functools import cache
from importlib import resources

import jinja2
from markupsafe import Markup

from servelab import __version__
from servelab.figures import palette
from servelab.report import drawing
from servelab.report.words import Words, rich, unbroken

_TEMPLATES = resources.files(__package__) / "templates"


def render(template: str, words: Words, context: Mapping[str, object]) -> str:
    """Fill a template. Everything is escaped but what the templates mark as made by servelab itself."""
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_source),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"rich": rich, "script": script_safe, "unbroken": unbroken}
    style, code, vega = style_sheet(), _source("paper.js"), _vega()
    shared = {
        "t": words,
        "css": style,
        "js": code,
        "vega": vega[0],
        "csp": policy(code, vega[1]),
        "light": json.dumps({name: light for name, (light, _) in palette.TOKENS.items()}),
        "version": __version__,
    }
    return environment.get_template(template).render({**shared, **context})


def policy(*scripts: str) -> str:
    """The content security policy: these scripts run, nothing is fetched, nothing is sent.

    A script is given as its text, or as a ready `sha256-…` source.
    """
    sources = " ".join(f"'{s if s.startswith('sha256-') else script_hash(s)}'" for s in scripts)
    return (
        f"default-src 'none'; script-src {sources}; style-src 'unsafe-inline'; img-src data:; "
        "font-src data:; base-uri 'none'; form-action 'none'"
    )


def script_hash(script: str) -> str:
    """A script as a source of the policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")


def script_safe(text: str) -> Markup:
    """JSON to stand inside a script element: no character that could end it."""
    safe = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return Markup(safe)  # noqa: S704 - every character that HTML could read is written as an escape above


@cache
def style_sheet() -> str:
    """The style sheet with the palette's colours and the fonts in it."""
    fonts = {
        name: base64.b64encode((_TEMPLATES / file).read_bytes()).decode("ascii")
        for name, file in (("roman", "source-serif-4.woff2"), ("italic", "source-serif-4-italic.woff2"))
    }
    tokens = {
        theme: " ".join(f"--{name}: {colours[place]};" for name, colours in palette.TOKENS.items())
        for place, theme in enumerate(("light", "dark"))
    }
    template = jinja2.Environment(autoescape=False).from_string(_source("paper.css"))  # noqa: S701 - no HTML
    return template.render(fonts=fonts, tokens=tokens)


@cache
def _vega() -> tuple[str, str]:
    """(the Vega libraries, compressed and base64; their hash for the policy)."""
    script = drawing.javascript()
    packed = gzip.compress(script.encode("utf-8"), 9, mtime=0)
    return base64.b64encode(packed).decode("ascii"), script_hash(script)


def _source(name: str) -> str:
    return (_TEMPLATES / name).read_text(encoding="utf-8")

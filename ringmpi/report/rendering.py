"""A page as HTML: one file, all texts escaped, and no script but ours."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from importlib import import_module
from importlib.resources import files
from typing import Any

from ringmpi.errors import ConfigError
from ringmpi.report.figures import series_css
from ringmpi.report.page import Page

NEEDED = ("jinja2", "matplotlib")


def check_installed() -> None:
    """ConfigError where a library is missing that a report needs."""
    for name in NEEDED:
        _import(name)


def rendered(page: Page) -> str:
    """The page as HTML. A browser runs its script alone: the hash of it is in the policy of the page.

    Raises
    ------
    ConfigError
        If jinja2 is not installed.
    """
    jinja2, here = _import("jinja2"), files("ringmpi.report")
    texts = {name: here.joinpath(f"report.{name}").read_text(encoding="utf-8") for name in ("css", "js", "html.j2")}
    environment = jinja2.Environment(autoescape=True, trim_blocks=False, undefined=jinja2.StrictUndefined)
    markup = import_module("markupsafe").Markup
    digest = b64encode(sha256(texts["js"].encode("utf-8")).digest()).decode("ascii")
    html = str(
        environment.from_string(texts["html.j2"]).render(
            page=page,
            style=markup(series_css() + texts["css"]),
            script=markup(texts["js"]),
            script_hash=f"sha256-{digest}",
        )
    )
    return html.encode("utf-8", "backslashreplace").decode("utf-8")  # file names may be no UTF-8


def _import(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise ConfigError(
            f"ringmpi analyze needs {name}, which is not installed. Run: python -m pip install {name}"
        ) from None

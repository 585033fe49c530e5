"""A page, parsed: what its elements are, and what is wrong with them."""

from __future__ import annotations

from collections import Counter
from html.parser import HTMLParser

VOID = {"meta", "br", "hr", "img", "input", "link", "col", "source", "wbr"}
PICTURES = {"img", "svg", "canvas"}


class Parsed(HTMLParser):
    """Of an HTML text.

    elements : (tag, attributes) of each
    texts : text by tag, joined
    wrong : what is opened and not closed, or closed and not opened
    """

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements, self.wrong, self.texts, self._open = [], [], {}, []
        self.feed(text)
        self.close()
        self.wrong += [f"<{tag}> is not closed" for tag in self._open]

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if not self._open or self._open[-1] != tag:
            self.wrong.append(f"</{tag}> at {self.getpos()} closes {self._open[-1:]}")
        else:
            self._open.pop()

    def handle_data(self, data):
        if self._open:
            self.texts[self._open[-1]] = self.texts.get(self._open[-1], "") + data

    def named(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]

    def ids(self):
        return [attributes["id"] for _, attributes in self.elements if "id" in attributes]


def faults(text):
    """What a page must not have, in words; empty for a good one."""
    page = Parsed(text)
    ids = page.ids()
    found = page.wrong + [f"id {name} is there {count} times" for name, count in Counter(ids).items() if count > 1]
    for tag, attributes in page.elements:
        for name in ("src", "href", "xlink:href", "action", "srcset"):
            address = attributes.get(name) or ""
            if address.startswith("data:image/png;base64,"):
                continue
            if "//" in address or address.startswith(("javascript:", "http")):
                found.append(f"<{tag}> fetches {address}")
            if address.startswith("#") and address != "#" and address[1:] not in ids:
                found.append(f"<{tag}> points at {address}, which is not there")
        described = attributes.get("alt") if tag == "img" else attributes.get("aria-label")
        if tag in PICTURES and not described:
            found.append(f"<{tag}> has no text for those who do not see it")
        found += [f"<{tag}> has {name}" for name in attributes if name.startswith("on")]
        for name in ("aria-labelledby", "aria-describedby", "for"):
            if attributes.get(name, ids[0]) not in ids:
                found.append(f"<{tag} {name}> is of {attributes[name]}, which is not there")
    return found

"""What a page's HTML contains, and what it must not contain because of its content security policy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

_VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
_ADDRESSES = {"href", "src", "action", "formaction"}


@dataclass
class Element:
    name: str
    attributes: dict[str, str]
    children: list[Element] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    """The texts in this element and below it, in their order."""

    @property
    def text(self) -> str:
        return " ".join("".join(self.texts).split())

    @property
    def classes(self) -> list[str]:
        return self.attributes.get("class", "").split()

    def find_all(self, name: str, class_: str | None = None) -> list[Element]:
        found = []
        for child in self.children:
            if child.name == name and (class_ is None or class_ in child.classes):
                found.append(child)
            found += child.find_all(name, class_)
        return found

    def find(self, name: str, class_: str | None = None) -> Element:
        return self.find_all(name, class_)[0]


class _Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open = [Element("document", {})]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.open[-1].children.append(element)
        if tag not in _VOID:
            self.open.append(element)

    def handle_endtag(self, tag: str) -> None:
        if tag not in _VOID:
            assert self.open[-1].name == tag, f"</{tag}> closes <{self.open[-1].name}>"
            self.open.pop()

    def handle_data(self, data: str) -> None:
        for element in self.open:
            element.texts.append(data)


def parse_html(text: str) -> Element:
    """Return the document. Fail if an element is not closed, or not in its order."""
    parser = _Parser()
    parser.feed(text)
    parser.close()
    assert len(parser.open) == 1, f"<{parser.open[-1].name}> is not closed"
    return parser.open[0]


def _walk(element: Element) -> Iterator[Element]:
    for child in element.children:
        yield child
        yield from _walk(child)


def check_policy(document: Element) -> None:
    """Fail if the document needs what the policy forbids, or leads out of the page."""
    for element in _walk(document):
        for name, value in element.attributes.items():
            assert name != "style", f"<{element.name} {name}={value!r}>"
            assert not name.startswith("on"), f"<{element.name} {name}={value!r}>"
            if name in _ADDRESSES:
                is_local = value.startswith(("/", "#")) and not value.startswith("//")
                assert is_local, f"<{element.name} {name}={value!r}>"
        if element.name == "script":
            assert element.attributes.get("src"), "an inline script"
            assert not element.text, "an inline script"
        assert element.name not in ("style", "iframe", "object", "embed", "base"), f"<{element.name}>"

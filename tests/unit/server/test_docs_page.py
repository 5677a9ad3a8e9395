"""The page that shows the API's document: whole HTML that loads nothing."""

from collections import Counter
from html.parser import HTMLParser

from anychip.server.docs_page import page_of
from support.local_client import Asker

VOID = {"meta", "link", "br"}


class Checked(HTMLParser):
    """Remembers ids, links and text, and refuses tags that don't match."""

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.links, self.tags, self.text = [], [], [], Counter(), ""

    def handle_starttag(self, tag, attrs):
        self.tags[tag] += 1
        attributes = dict(attrs)
        self.ids += [attributes["id"]] if "id" in attributes else []
        self.links += [attributes[name] for name in ("href", "src") if name in attributes]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def checked(html):
    parser = Checked()
    parser.feed(html)
    parser.close()
    assert parser.open == []
    return parser


REPLY = Asker().ask("GET", "/docs")
PAGE = checked(REPLY.text)
DOCUMENT = Asker().ask("GET", "/openapi.json").json()


def test_the_page_is_html_that_may_load_nothing():
    assert REPLY.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in REPLY.headers["content-security-policy"]
    assert not PAGE.tags.keys() & {"script", "img", "iframe", "form", "base"}
    assert {link for link in PAGE.links if not link.startswith("#")} == {"data:,", "openapi.json"}


def test_every_endpoint_object_and_field_is_on_the_page():
    for path, methods in DOCUMENT["paths"].items():
        assert path in PAGE.text
        for operation in methods.values():
            assert operation["summary"] in PAGE.text
    for name, schema in DOCUMENT["components"]["schemas"].items():
        assert name in PAGE.ids
        assert all(field in PAGE.text for field in schema.get("properties", ()))


def test_links_lead_to_places_on_the_page_and_ids_are_there_once():
    assert {link[1:] for link in PAGE.links if link.startswith("#")} <= set(PAGE.ids)
    assert len(set(PAGE.ids)) == len(PAGE.ids)


def test_whatever_a_document_says_is_text():
    evil = "<script>alert(1)</script>"
    page = page_of(
        {
            "info": {"title": evil, "version": evil, "description": evil},
            "paths": {f"/{evil}": {"get": {"operationId": evil, "summary": evil, "responses": {}}}},
            "components": {"schemas": {evil: {"description": evil, "properties": {evil: {"enum": [evil]}}}}},
        }
    )
    assert "script" not in checked(page).tags

"""The template: well formed, whole in itself, readable without eyes, and safe with any text from a file."""

import json
import re
from base64 import b64encode
from hashlib import sha256

import pytest

from ringmpi.report.rendering import rendered
from tests.report.pages import whole_page
from tests.report.parsed import Parsed, faults

ATTACK = '</script><script>alert(1)</script><img src=x onerror="alert(2)">\'"&{{ 7 * 7 }}'


def test_a_page_with_everything_has_no_faults():
    assert faults(rendered(whole_page())) == []


@pytest.mark.parametrize(
    ("good", "bad", "fault"),
    [
        ('id="one"', 'id="two"', "id two is there 2 times"),
        ("</section>", "", "</main> at"),
        ('aria-label="a line"', "", "<svg> has no text"),
        ('href="#one"', 'href="#none"', "points at #none"),
        ('href="entropy.svg"', 'href="https://a.example/x.svg"', "<a> fetches https://a.example/x.svg"),
        ('for="map-head"', 'for="map-hand"', "is of map-hand"),
    ],
)
def test_faults_of_a_page_are_seen(good, bad, fault):
    text = rendered(whole_page())
    assert good in text
    assert any(fault in found for found in faults(text.replace(good, bad, 1)))


def test_texts_of_a_file_are_shown_and_nothing_else():
    text = rendered(whole_page(ATTACK))
    page = Parsed(text)
    assert faults(text) == []
    assert len(page.named("script")) == len(Parsed(rendered(whole_page())).named("script"))
    assert page.named("img") == []
    assert ATTACK in page.texts["h1"]
    assert ATTACK in page.texts["td"]
    assert [a["aria-label"] for a in page.named("canvas")] == ["Attention map. A cell is 16 by 16."]
    assert ATTACK in json.loads(script_texts(text)[0])["names"]


def script_texts(text):
    return re.findall(r"<script[^>]*>(.*?)</script>", text, re.DOTALL)


def test_only_the_script_of_the_page_may_run():
    text = rendered(whole_page(ATTACK))
    digest = b64encode(sha256(script_texts(text)[-1].encode()).digest()).decode()
    policy = next(a["content"] for a in Parsed(text).named("meta") if "http-equiv" in a)
    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy


def test_the_page_says_where_one_is_in_it():
    page = Parsed(rendered(whole_page()))
    assert [a["href"] for a in page.named("a") if a["href"].startswith("#")] == ["#start", "#start", "#one", "#two"]
    assert page.named("html") == [{"lang": "en"}]
    assert page.texts["title"] == "plain - ringmpi"

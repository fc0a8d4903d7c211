"""Pages that show values of records keep text, tables, and links to their own site."""

from __future__ import annotations

import pytest

from sluice_airflow.page.markup import harmless

PAGE = "validations/orders-slice/r/t/orders.html"


@pytest.mark.parametrize(
    ("value", "left"),
    [
        ('<meta http-equiv=refresh content="0;url=//evil">', ""),
        ("<base href=//evil><link rel=stylesheet href=//evil>", ""),
        ("<style>body { display: none }</style>", ""),
        ("<IFRAME src=//evil>x</IFRAME >", ""),
        ("<form action=//evil><input name=a><button>Log in</button></form>", "Log in"),
        ("<svg><a xlink:href=javascript:x>y</a></svg>", "<a>y</a>"),
        ("<object data=x></object><embed src=x><img src=/logout onerror=x>", ""),
        ('<b onclick="x" style="y" class="z">b</b>', '<b class="z">b</b>'),
        ("<div/onclick=x>d</div", "<div>d&lt;/div"),
        ("<td title='\"><script>'>", '<td title="&quot;><script>">'),
        ("1 < 2 &lt;b&gt; <3", "1 &lt; 2 &lt;b&gt; &lt;3"),
        ("<p>after<!-- hidden --><br></p>", "<p>after<br></p>"),
        ("<?x y><!DOCTYPE html>z", "z"),
    ],
)
def test_data_docs_show_of_a_value_its_text_and_nothing_else(value: str, left: str) -> None:
    assert harmless(value, PAGE) == left


@pytest.mark.parametrize("opener", ["<!--", "<script>", "<style>", "<iframe>", "<title>", "<textarea>"])
def test_data_docs_value_cannot_hide_the_text_after_it(opener: str) -> None:
    page = f"{opener}<p>3 unexpected</p><script>ours</script><!-- ours --><style>ours</style><p>failed</p>"
    left = harmless(page, PAGE)
    assert "<p>3 unexpected</p>" in left
    assert "<p>failed</p>" in left


@pytest.mark.parametrize(
    "address", ["#section-2", "../../../../index.html", "../../../../expectations/a.html", "b%20c.html"]
)
def test_data_docs_link_within_the_site_stays(address: str) -> None:
    assert harmless(f'<a href="{address}">x</a>', PAGE) == f'<a href="{address}">x</a>'


@pytest.mark.parametrize(
    "address",
    [
        "javascript:alert(1)", "java\tscript:x", "&#106;avascript:x", "data:text/html,x", "https://evil.example/",
        "//evil.example/", "/api/v2/auth/logout", "\\\\evil", "../../../../../../../api/v2/auth/logout",
        "..%2f" * 7 + "x", "%2e%2e/" * 7 + "x", "../" * 9 + "site/x",
    ],
)  # fmt: skip
def test_data_docs_link_elsewhere_becomes_text(address: str) -> None:
    assert harmless(f'<a href="{address}">x</a>', PAGE) == "<a>x</a>"


@pytest.mark.parametrize(
    "part",
    ["<script", "<script>", "<a ", "<a x='", "<a x=\"'", "<!--", "<!", "</", "</a", "<?", "<style><", "<a ='", "<a\n\n",
     "<iframe>", "<![CDATA[", "--><!--", "<p>", "&#", "<script><style><title>", "</script ", "<", "=", "<p ="],
)  # fmt: skip
@pytest.mark.timeout(60)  # a time that grows with the square would be hours
def test_data_docs_clean_a_long_text_of_half_a_tag_in_time(part: str) -> None:
    assert len(harmless(part * (200_000 // len(part)), PAGE)) < 1_200_000

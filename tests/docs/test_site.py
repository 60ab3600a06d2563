"""The site has every page, and every link of a page leads somewhere."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.docs
PAGES = sorted(Path("docs").rglob("*.md"))


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent.name != "laws"], ids=str)
def test_a_page_is_in_the_navigation(page):
    assert f" {page.relative_to('docs')}\n" in Path("mkdocs.yml").read_text()


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_a_list_within_a_list_is_indented_as_the_site_needs_it(page):
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert not re.search(r"^ {1,3}[-*] ", text, re.MULTILINE)


@pytest.mark.parametrize("page", [*PAGES, Path("README.md"), Path("CONTRIBUTING.md")], ids=str)
def test_what_a_page_links_to_is_there(page):
    targets = re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("word", ["overfitting", "learning rate", "wall-clock"])
def test_a_search_for_a_common_word_finds_a_heading_and_a_question(word):
    headings = "\n".join(
        re.findall(r"^#+ .*", "\n".join(page.read_text() for page in PAGES if page.stem != "log"), re.M)
    )
    assert word in headings.lower()
    assert word in Path("docs/faq.md").read_text().lower()

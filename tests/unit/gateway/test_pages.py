"""Pages of lists: made once for all who had asked before, and never older than the question."""

from collections.abc import Generator

from berthmaster.gateway.pages import Page, Pages
from berthmaster.messages.api import ListReply

LONG = 3  # stretches of a page


def test_who_asks_while_a_page_is_made_gets_the_next_one_with_all_others() -> None:
    pages, made = Pages(), list[str]()

    def make(name: str) -> Generator[None, None, ListReply]:
        made.append(name)
        for _ in range(LONG - 1):
            yield
        return ListReply(next_before=len(made))

    def join(name: str) -> Page:
        return pages.join("ann", b"{}", lambda: make(name))

    first = join("first")
    first.work()
    second, third = join("second"), join("third")
    assert second is third
    while second.reply is None:
        second.work()  # of the first one before
    assert (first.reply, second.reply) == (ListReply(next_before=1), ListReply(next_before=2))
    assert made == ["first", "second"]
    for page in (first, second, third):
        pages.leave("ann", b"{}", page)
    assert len(pages) == 0


def test_other_requests_and_other_tenants_have_pages_of_their_own() -> None:
    pages = Pages()

    def make() -> Generator[None, None, ListReply]:
        yield
        return ListReply()

    asked: list[tuple[str | None, bytes]] = [("ann", b"{}"), ("ann", b""), ("bob", b"{}")]
    asked.append((None, b"{}"))
    assert len({id(pages.join(*one, make)) for one in asked}) == len(asked)


def test_a_page_whose_askers_have_all_given_up_is_forgotten_and_the_next_is_made() -> None:
    pages = Pages()

    def make(number: int) -> Generator[None, None, ListReply]:
        yield
        return ListReply(next_before=number)

    first = pages.join("ann", b"{}", lambda: make(1))
    first.work()
    second = pages.join("ann", b"{}", lambda: make(2))
    pages.leave("ann", b"{}", first)
    second.work()
    second.work()
    assert (first.reply, second.reply) == (None, ListReply(next_before=2))
    pages.leave("ann", b"{}", second)
    assert len(pages) == 0

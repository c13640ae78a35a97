"""How plugin code can be called, read from its signature."""

from __future__ import annotations

import functools

import pytest

from miles_core.lib.signatures import accepted, fits, is_async, signature_of


async def coroutine(item):
    return item


class Awaited:
    async def __call__(self, item):
        return item


@pytest.mark.parametrize(
    "function", [coroutine, Awaited(), functools.partial(coroutine, 1), functools.partial(Awaited(), 1)]
)
def test_what_gives_something_to_await_is_async(function) -> None:
    assert is_async(function)


@pytest.mark.parametrize("function", [len, lambda item: item, functools.partial(print, 1), object()])
def test_all_else_is_not(function) -> None:
    assert not is_async(function)


@pytest.mark.parametrize(
    ("function", "taken"),
    [
        (lambda item: 0, ()),
        (lambda item, group: 0, ("group",)),
        (lambda item, *, task, other=1: 0, ("task",)),
        (lambda item, **rest: 0, ("group", "task")),
        (lambda group: 0, ()),
        (lambda group, **rest: 0, ("task",)),
        (lambda *items: 0, ()),
        (lambda item, group, /: 0, ()),
        (max, ()),
    ],
)
def test_a_function_gets_of_the_offered_keywords_those_that_it_takes(function, taken) -> None:
    assert accepted(function, 1, ("group", "task")) == taken


def test_a_decorator_that_passes_everything_on_gets_what_the_function_in_it_takes() -> None:
    def passing(function):
        @functools.wraps(function)
        def wrapper(*arguments, **keywords):
            return function(*arguments, **keywords)

        return wrapper

    assert accepted(passing(lambda item, task: 0), 1, ("group", "task")) == ("task",)
    assert accepted(passing(lambda item: 0), 1, ("group", "task")) == ()


def test_a_decorator_that_fills_an_argument_in_is_judged_by_its_own_signature() -> None:
    def inner(item, extra):
        return item

    @functools.wraps(inner)
    def filled(item):
        return inner(item, 1)

    signature = signature_of(filled)
    assert signature is not None
    assert fits(signature, ["item"])


def test_a_built_in_without_a_signature_is_not_judged() -> None:
    assert signature_of(max) is None

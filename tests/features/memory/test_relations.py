"""Other names of people and things, where a text states them."""

from __future__ import annotations

import pytest

from accordion.features.memory.extraction.relations import find_names, names_of


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("The cluster runs Kubernetes (also k8s) on three nodes.", ("Kubernetes", "k8s")),
        ("Write to Priya Nair (aka Pri) for access.", ("Priya Nair", "Pri")),
        ("The Ledger Service, also known as Moneta, is in Go.", ("Ledger Service", "Moneta")),
        ("We call it k8s, short for Kubernetes.", ("k8s", "Kubernetes")),
        ("`pg` is short for PostgreSQL here.", ("pg", "PostgreSQL")),
        ("It runs on Mercury (also called staging, and preprod).", ("Mercury", "staging", "preprod")),
    ],
)
def test_a_text_that_gives_another_name_is_understood(text: str, names: tuple[str, ...]) -> None:
    assert find_names(text, ()) == [names]


@pytest.mark.parametrize(
    "text",
    [
        "Run the tests (also the slow ones that need a network and a database, if there is time for all today).",
        "The cluster also runs Redis.",
        "It is short for a reason.",
        "Tests are run before each release (also on Fridays).",
        "",
    ],
)
def test_a_text_without_another_name_has_none(text: str) -> None:
    assert find_names(text, ()) == []


def test_an_entity_may_have_other_names_in_brackets() -> None:
    assert names_of("Ledger Service (also Moneta or the till)") == ("Ledger Service", "Moneta", "the till")
    assert names_of("Ledger Service (Go)") == ("Ledger Service (Go)",)
    assert find_names("It is down.", ["Ledger Service (also Moneta)", "Redis"]) == [("Ledger Service", "Moneta")]

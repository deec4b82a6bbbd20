import pytest

from accordion.config.yaml_text import read_tree
from accordion.model.errors import ConfigError

BEFORE = "server:\n  port: 1\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("server:\n\tport: 1", "line 2, column 1: this is a tab; indent with spaces"),
        (f"{BEFORE}\thost: x", "line 3, column 1: this is a tab"),
        (f"{BEFORE} \thost: x", "line 3, column 2: this is a tab"),
        ("server:\n\t- a", "line 2, column 1: this is a tab"),
        ('server:\n  host: "x\n  port: 1\n', "line 2, column 9: the quote that begins here is not closed"),
        ("server:\n  host: 'it's'\n", "line 2, column 13: text follows a closing quote"),
        ("server:\n  port:8787\n  host: x\n", "line 2, column 8: a space is missing here, after the colon"),
        (f"{BEFORE}  host:x\n  workers: 2", "line 3, column 8: a space is missing here"),
        (f"{BEFORE}  host:x\n", "line 3, column 8: a space is missing here"),
        ("server:\n  host: a: b", "line 2, column 10: this is the second colon of the line; put the value in quotes"),
        ("server:\n  port: 1\n   host: x", "line 3, column 8: expected `key: value`, indented like the other keys"),
        ("server\nlogging: {}", "line 2, column 8: expected `key: value`"),
        ("server:\n    port: 1\n  host: x", "line 3, column 3: the indentation of this line fits none"),
        ("proxy_keys:\n- id: a\nb", "line 3"),
        ("server:\n  - a\n  port: 1", "line 3, column 3: this line is no entry of the list before it"),
        ("proxy_keys: [1, 2\nserver: {}", "line 1, column 13: the bracket that begins here is not closed"),
        ("server: {port: 1\nlogging: {}", "line 1, column 9: the bracket that begins here is not closed"),
        ("admin_key: @x", "line 1, column 12: a value cannot begin with this character; put the value in quotes"),
        ("admin_key: *x", "line 1, column 12: `*` refers to an anchor that is not in the file"),
        ("server: {}\n---\nlogging: {}", "line 2, column 1: a second document begins here; remove the line `---`"),
        ("server: {{ values }}", "line 1, column 10: a brace stands where a key is expected"),
    ],
)
def test_a_slip_in_the_yaml_is_named_with_its_place_and_remedy(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_tree(text, {})
    assert caught.value.reason.startswith(words)


def test_a_tab_between_values_is_no_error() -> None:
    assert read_tree("server: {port:\t1}\t# one", {}) == {"server": {"port": 1}}

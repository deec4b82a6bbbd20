"""The index of words that left the window: it finds the texts that hold a word, in little memory."""

from hypothesis import given
from hypothesis import strategies as st

from accordion.archive.recall_index import WordIndex

WORDS = [b"path", b"name", b"config", b"value", b"error"]
texts = st.lists(st.sets(st.sampled_from(WORDS)), max_size=20)


@given(texts, st.sets(st.sampled_from([*WORDS, b"absent"]), min_size=1))
def test_it_finds_the_texts_with_all_words(texts, words):
    index = WordIndex(texts)
    assert list(index.find(words)) == [number for number, text in enumerate(texts) if words <= text]


@given(texts)
def test_it_knows_each_text_of_a_word(texts):
    index = WordIndex(texts)
    for word in (*WORDS, b"absent"):
        assert list(index.numbers_of(word)) == [number for number, text in enumerate(texts) if word in text]


def test_of_many_words_the_rarest_are_looked_up():
    index = WordIndex([{b"path", b"name"}, {b"path", b"config"}, {b"path"}])
    assert list(index.find([b"path", b"name"], limit=1)) == [0]


def test_a_word_takes_few_bytes():
    texts = [{b"word%d" % number for number in range(first, first + 100)} for first in range(0, 10_000, 50)]
    assert WordIndex(texts).size < 30 * 10_050

"""The index of words that left the window: it finds the texts that hold a word, in little memory."""

from hypothesis import given
from hypothesis import strategies as st

from accordion.archive.recall_index import Passage, PassageList, WordIndex
from tests.object_sizes import retained_bytes

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


positions = st.none() | st.tuples(st.integers(0, 100_000), st.integers(0, 300))


@given(
    st.lists(
        st.builds(Passage, positions, positions, st.booleans(), st.sampled_from(["", "art_1", "art_2"]), st.booleans())
    )
)
def test_a_list_gives_its_passages_back(passages):
    packed = PassageList(passages)
    assert [*packed] == [packed[number] for number in range(len(packed))] == passages


def test_an_index_takes_the_bytes_that_it_states():
    artifacts = [f"art_{number:040}" for number in range(100)]
    packed = PassageList(Passage((at, 0), (at - 1, 1), True, artifacts[at // 3], False) for at in range(1, 300))
    index = WordIndex([{b"word%d" % number for number in range(at, at + 100)} for at in range(300)])
    for each in (packed, index):
        assert 0.7 < retained_bytes(each) / each.size < 1.5
    assert packed.size < 100 * 299

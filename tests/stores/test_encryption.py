from __future__ import annotations

import base64
import logging
import os
import subprocess
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.archive.sealing import PLAIN, SEALED, PlainSealer
from accordion.model.ports import Sealer
from accordion.model.tenant import TenantScope
from accordion.stores.encryption import AesSealer, open_block_sealer, open_sealer, read_keys

TENANT = TenantScope("t", b"t")
ONE = TenantScope("one", b"one")
ANOTHER = TenantScope("another", b"another")

KEY, OTHER = bytes(range(32)), bytes(range(32, 64))
SEALERS: list[Sealer] = [AesSealer([KEY]), PlainSealer()]


@pytest.mark.parametrize("sealer", SEALERS, ids=["sealed", "unsealed"])
@given(
    tenant=st.builds(TenantScope, st.text(max_size=40), st.binary(max_size=40)),
    name=st.text(max_size=40),
    value=st.binary(max_size=2_000),
)
def test_sealed_bytes_come_back_unchanged(sealer, tenant, name, value):
    assert sealer.open(tenant, name, sealer.seal(tenant, name, value)) == value


@pytest.mark.parametrize("value", [PLAIN, SEALED, PLAIN + SEALED, SEALED * 40, b""])
def test_a_plain_value_that_looks_sealed_comes_back_too(value):
    for sealer in SEALERS:
        assert sealer.open(TENANT, "n", sealer.seal(TENANT, "n", value)) == value
    assert AesSealer([KEY]).open(TENANT, "n", PlainSealer().seal(TENANT, "n", value)) == value


def test_a_block_sealed_before_there_was_a_key_opens_for_its_tenant_alone():
    before, after = open_block_sealer(""), open_block_sealer(KEY.hex())
    for sealer, reader in ((before, after), (before, before), (after, after)):
        sealed = sealer.seal(ONE, "block", b"value")
        assert sealed.startswith(SEALED)
        assert b"value" not in sealed
        assert reader.open(ONE, "block", sealed) == b"value"
        assert reader.open(ANOTHER, "block", sealed) is None
        assert reader.open(ONE, "other", sealed) is None
    assert before.open(ONE, "block", after.seal(ONE, "block", b"value")) is None


@given(st.binary(min_size=8, max_size=200))
def test_nothing_of_a_value_is_seen_and_the_same_value_never_looks_the_same(value):
    sealer = AesSealer([KEY])
    first, second = sealer.seal(TENANT, "n", value), sealer.seal(TENANT, "n", value)
    assert first[:1] == SEALED
    assert first != second
    assert value not in first


def test_a_value_opens_for_its_tenant_under_its_name_only():
    sealer = AesSealer([KEY])
    sealed = sealer.seal(ONE, "row/1", b"said")
    assert sealer.open(ONE, "row/1", sealed) == b"said"
    assert sealer.open(ANOTHER, "row/1", sealed) is None
    assert sealer.open(ONE, "row/2", sealed) is None
    assert AesSealer([OTHER]).open(ONE, "row/1", sealed) is None
    assert PlainSealer().open(ONE, "row/1", sealed) is None


@given(st.data())
def test_a_damaged_value_is_none_and_never_an_error(data):
    sealer = AesSealer([KEY])
    sealed = sealer.seal(TENANT, "n", b"something that was said")
    at = data.draw(st.integers(1, len(sealed) - 1))
    assert sealer.open(TENANT, "n", sealed[:at]) is None
    flipped = sealed[:at] + bytes([sealed[at] ^ data.draw(st.integers(1, 255))]) + sealed[at + 1 :]
    assert sealer.open(TENANT, "n", flipped) is None
    assert sealer.open(TENANT, "n", SEALED + data.draw(st.binary(max_size=60))) is None


def test_the_first_key_seals_and_all_open():
    old, new, rotated = AesSealer([KEY]), AesSealer([OTHER]), AesSealer([OTHER, KEY])
    assert rotated.open(TENANT, "n", old.seal(TENANT, "n", b"before")) == b"before"
    assert new.open(TENANT, "n", rotated.seal(TENANT, "n", b"after")) == b"after"
    assert old.open(TENANT, "n", rotated.seal(TENANT, "n", b"after")) is None


def test_plain_values_are_read_with_a_key():
    assert AesSealer([KEY]).open(TENANT, "n", b"\x01 as it was") == b"\x01 as it was"


@pytest.mark.parametrize(
    "text",
    [
        KEY.hex(), KEY.hex().upper(), base64.b64encode(KEY).decode(), base64.urlsafe_b64encode(KEY).decode(),
        base64.b64encode(KEY).decode().rstrip("="), f" {KEY.hex()} ",
    ],
)  # fmt: skip
def test_a_key_is_read_in_hexadecimal_and_base64(text):
    assert read_keys(text) == (KEY,)


def test_several_keys_stand_with_commas_between():
    assert read_keys(f"{KEY.hex()}, {base64.b64encode(OTHER).decode()}") == (KEY, OTHER)
    assert read_keys("") == read_keys("  ") == ()


@pytest.mark.parametrize("text", ["short", KEY.hex()[:-2], KEY.hex() + "00", f"{KEY.hex()},", "é" * 43, "," * 3])
def test_a_text_that_is_no_key_is_refused_without_being_shown(text):
    with pytest.raises(ValueError, match="32 bytes") as caught:
        read_keys(text)
    assert text not in str(caught.value)


def test_values_are_encrypted_with_a_key_only():
    assert isinstance(open_sealer(""), PlainSealer)
    assert isinstance(open_sealer(KEY.hex()), AesSealer)


@pytest.mark.parametrize("sealer", [AesSealer([OTHER]), PlainSealer()], ids=["wrong key", "no key"])
def test_values_that_cannot_be_opened_are_warned_of_once(caplog, sealer):
    sealed = AesSealer([KEY]).seal(TENANT, "n", b"said")
    with caplog.at_level(logging.WARNING, "accordion"):
        assert [sealer.open(b"t", "n", sealed) for _ in range(3)] == [None] * 3
    assert len(caplog.records) == 1
    assert "missing" in caplog.text


def test_threads_may_share_a_sealer():
    sealer, wrong = AesSealer([KEY]), []

    def work(tenant: TenantScope) -> None:
        for at in range(300):
            value = os.urandom(200)
            if sealer.open(tenant, str(at), sealer.seal(tenant, str(at), value)) != value:
                wrong.append(at)

    threads = [threading.Thread(target=work, args=((ONE, ANOTHER)[at % 2],)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_cryptography_is_imported_only_where_a_key_is_set():
    code = (
        "import sys; from accordion.stores.encryption import open_sealer; open_sealer(''); "
        "assert 'cryptography' not in sys.modules; open_sealer('00' * 32); "
        "assert 'cryptography' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

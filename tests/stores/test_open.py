import subprocess
import sys
from pathlib import Path

import pytest

from accordion.model.errors import ConfigError
from accordion.model.ports import Key
from accordion.stores.memory_store import InMemoryStore
from accordion.stores.open import open_store
from accordion.stores.redis import RedisStore
from tests.valkey import Valkey, valkey_server  # noqa: F401


async def test_four_slashes_are_an_absolute_path_whose_folder_is_made(tmp_path: Path):
    path = tmp_path / "a b" / "é" / "store.db"
    store = open_store(f"sqlite:///{tmp_path}/a%20b/é/store.db", timeout=20.0)
    await store.put(Key("c", "n"), b"1")
    await store.close()
    assert path.is_file()


async def test_three_slashes_are_a_path_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    store = open_store("sqlite:///data/store.db", timeout=20.0)
    await store.ping()
    await store.close()
    assert (tmp_path / "data" / "store.db").is_file()


async def test_memory_is_a_store_of_its_own_each_time():
    first, second = (open_store("memory://", timeout=20.0) for _ in range(2))
    assert isinstance(first, InMemoryStore)
    await first.put(Key("c", "n"), b"1")
    assert await second.get(Key("c", "n")) is None


async def test_redis_and_valkey_urls_lead_to_the_same_server(valkey_server: Valkey):  # noqa: F811
    for scheme in ("redis", "valkey"):
        store = open_store(valkey_server.url.replace("redis", scheme), timeout=20.0)
        assert isinstance(store, RedisStore)
        assert await store.put_if_absent(Key("opening", "n"), scheme.encode()) == b"redis"
        await store.close()


@pytest.mark.parametrize("scheme", ["rediss", "valkeys", "rediss+cluster", "redis+cluster", "valkey+cluster"])
async def test_tls_and_clusters_are_opened_lazily(scheme: str):
    store = open_store(f"{scheme}://127.0.0.1:6379", timeout=20.0)
    assert isinstance(store, RedisStore)
    await store.close()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "sqlite",
        "sqlite://",
        "sqlite://relative.db",
        "sqlite:///",
        "sqlite:///a%00b",
        "postgres://me:hunter2@host/db",
        "redis://me:hunter2@host:port/0",
        "redis+sentinel://me:hunter2@host",
        "redis://me:hunter2@host/0?foo=bar",
        "redis://me:hunter2@host/0?ssl_cert_reqs=none",
        "redis://me:hunter2@host/0?protocol=9",
        "redis://me:hunter2@host/staging",
        "redis://me:hunter2@host/1/2",
        "redis://me:hunter2@host/0?decode_responses=true",
        "redis://me:hunter2@host/0?socket_timeout=1",
        "redis://me:hunter2@host/0?retry_on_timeout=true",
        "redis://me:hunter2@host/0?max_connections=",
        "redis+cluster://me:hunter2@host?read_from_replicas=true",
        "redis+cluster://me:hunter2@host?foo=bar",
        "redis+cluster://me:hunter2@host/2",
        "/var/lib/store.db",
    ],
)
def test_a_url_that_names_no_store_is_a_config_error_without_its_password(url: str):
    with pytest.raises(ConfigError) as caught:
        open_store(url, timeout=1.0)
    assert "hunter2" not in str(caught.value)
    assert caught.value.path == "$.store.url"


async def test_options_that_redis_py_has_are_passed_on():
    for url in (
        "redis://h/0?socket_keepalive=true",
        "redis://h/3/",
        "redis://h?db=3&client_name=accordion&health_check_interval=5&username=me&password=hush",
        "redis+cluster://h?client_name=accordion",
        "rediss://h/0?ssl_cert_reqs=none",
    ):
        await open_store(url, timeout=1.0).close()


def test_redis_is_not_imported_unless_used():
    code = (
        "import sys; from accordion.stores.open import open_store; import accordion.stores.guarded;"
        "open_store('sqlite:///never-opened.db', timeout=1.0); open_store('memory://', timeout=1.0);"
        "assert 'redis' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])

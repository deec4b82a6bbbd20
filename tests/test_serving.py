"""What the supervisor of several workers does beside them."""

import os
import time
from pathlib import Path

from proxy.serving import keep


def test_files_that_workers_share_never_look_unused(tmp_path: Path) -> None:
    (tmp_path / "places").write_bytes(b"held")
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    os.utime(tmp_path / "places", (1, 1))
    os.utime(tmp_path, (1, 1))
    keep(tmp_path)
    for path in (tmp_path, tmp_path / "places"):
        assert time.time() - path.stat().st_mtime < 60
    assert (tmp_path / "places").read_bytes() == b"held"

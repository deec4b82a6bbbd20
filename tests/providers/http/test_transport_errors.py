"""What a person reads about a connection that could not be made."""

from __future__ import annotations

import errno

import pytest

from accordion.providers.http.transport import describe_connect_error


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_that_no_more_files_may_be_open_is_said_of_this_proxy(number: int) -> None:
    assert "this proxy may not open any more files" in describe_connect_error(OSError(number, "Too many open files"))

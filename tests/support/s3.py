"""An S3 server for tests.

It is moto's, over real HTTP: s3fs tests itself against it, and of the others on the package index none is as widely
used and installs without a service of its own.
"""

from __future__ import annotations

import os
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import fsspec
import pytest
from moto.server import ThreadedMotoServer


@contextmanager
def serving_s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadedMotoServer]:
    """An S3 server with a bucket named clips, found as the tools of Amazon find theirs."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://{}:{}".format(*server.get_host_and_port()))
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    urllib.request.urlopen(f"{os.environ['AWS_ENDPOINT_URL']}/moto-api/reset", b"").close()  # it forgets other tests'
    files = fsspec.filesystem("s3", skip_instance_cache=True)
    type(files).clear_instance_cache()  # those of other tests know other servers
    files.mkdir("clips")
    try:
        yield server
    finally:
        server.stop()

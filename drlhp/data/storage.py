"""Folders at URLs that fsspec can use, such as s3://BUCKET/PREFIX."""

from __future__ import annotations

from typing import Any

import fsspec

S3 = ("s3", "s3a")
S3_SECONDS = 5  # Limit for a connection and for a reply. It is short because a person waits.
CHECK = (
    "check the address, that the bucket or folder is there, and the credentials (for S3: AWS_ACCESS_KEY_ID, "
    "AWS_SECRET_ACCESS_KEY, and AWS_ENDPOINT_URL where it is not Amazon's)"
)


def open_url(url: str, called: str) -> tuple[Any, str]:
    """Returns fsspec's file system of a URL, and its path there.

    called: what messages call the URL.

    Raises OSError, in one sentence, if it is no URL, or fsspec does not know it or cannot use it.
    """
    protocol, separator, _ = url.partition("://")
    if not separator or (protocol == "file" and not url.startswith("file:///")):
        raise OSError(f"{called} is no whole URL; give one such as s3://BUCKET/PREFIX or file:///FOLDER.")
    options: dict[str, Any] = {"auto_mkdir": True} if protocol == "file" else {}
    if protocol in S3:
        timeouts = {"connect_timeout": S3_SECONDS, "read_timeout": S3_SECONDS, "retries": {"max_attempts": 1}}
        options = {"config_kwargs": timeouts, "use_listings_cache": False}
    try:
        files, root = fsspec.url_to_fs(url, **options)
    except ImportError as error:
        package = "s3fs" if protocol in S3 else "the package that it names"
        raise OSError(
            f"{called} needs another package ({error}): install it with "
            f"`.venv/bin/python -m pip install -c constraints.txt {package}`."
        ) from error
    except Exception as error:  # each file system has errors of its own
        raise OSError(f"{called} cannot be used ({first_line(error)}); give a URL of fsspec's.") from error
    if protocol in S3:
        files.retries = 1  # s3fs retries too, on top of botocore.
    return files, root


def first_line(error: Exception) -> str:
    """Returns an error's first line without the full stop, or else the name of its class."""
    return (str(error) or type(error).__name__).splitlines()[0].rstrip(".")

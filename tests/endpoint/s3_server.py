"""An S3 face on a real server, without signatures, and clients for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import botocore.session
from botocore.config import Config
from wire_client import serving

from headrace.endpoint.http.http_server import HttpServer
from headrace.endpoint.s3.s3_face import S3Face

ACCOUNT = "123456789012"
SESSION = botocore.session.Session()


@contextmanager
def s3_serving(root: Path, region: str = "us-east-1") -> Iterator[tuple[HttpServer, S3Face]]:
    """A face over a folder, served."""
    face = S3Face(root, ACCOUNT, region)
    try:
        with serving(lambda request: face.handle(request)) as server:
            yield server, face
    finally:
        face.close()


def s3_client(url: str, **settings: Any) -> Any:
    """A client that asks once, in the path style."""
    config = Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}, read_timeout=60, **settings)
    return SESSION.create_client(
        "s3", "us-east-1", endpoint_url=url, aws_access_key_id="test", aws_secret_access_key="test", config=config
    )

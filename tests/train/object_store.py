"""An object store that speaks S3, as a process of this machine: moto's server, in an environment of its own."""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

SERVER = Path(sys.prefix) / "stores" / "bin" / "moto_server"

BUCKET = "bucket"


@contextlib.contextmanager
def serve(port=0):
    """The address of an empty folder in a store; this process and those that it starts find the store."""
    port = port or 20_000 + os.getpid() % 20_000
    endpoint = f"http://127.0.0.1:{port}"
    process = subprocess.Popen(
        [SERVER, "-H", "127.0.0.1", "-p", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    before = dict(os.environ)
    os.environ |= {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    try:
        for _ in range(600):
            with contextlib.suppress(URLError, ConnectionError):
                urlopen(Request(f"{endpoint}/{BUCKET}", method="PUT")).close()
                break
            assert process.poll() is None, "the server ended"
            time.sleep(0.2)
        yield f"s3://{BUCKET}/run"
    finally:
        process.kill()
        process.wait()
        os.environ.clear()
        os.environ.update(before)

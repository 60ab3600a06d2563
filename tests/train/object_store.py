"""Object stores as processes of this machine: moto's server of S3, and an emulator of Google's.

Both are in an environment of their own. Google's refuses no second file of a name that is to be made once.
"""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

SERVERS = Path(sys.prefix) / "stores" / "bin"

BUCKET = "bucket"


@contextlib.contextmanager
def serve(protocol):
    """The address of an empty folder in a store, ``s3`` or ``gs``; this process and those that it starts find it."""
    port = 20_000 + os.getpid() % 20_000
    endpoint = f"http://127.0.0.1:{port}"
    if protocol == "s3":
        command = [SERVERS / "moto_server", "-H", "127.0.0.1", "-p", str(port)]
        found = {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        make_bucket = Request(f"{endpoint}/{BUCKET}", method="PUT")
    else:
        command = [SERVERS / "gcp-storage-emulator", "start", "--host=127.0.0.1", f"--port={port}", "--in-memory"]
        # gcsfs would ask Google what kind of bucket it is.
        found = {"STORAGE_EMULATOR_HOST": endpoint, "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"}
        make_bucket = Request(
            f"{endpoint}/storage/v1/b", b'{"name": "%s"}' % BUCKET.encode(), {"Content-Type": "application/json"}
        )
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    before = dict(os.environ)
    os.environ |= found
    try:
        for _ in range(600):
            with contextlib.suppress(URLError, ConnectionError):
                urlopen(make_bucket).close()
                break
            assert process.poll() is None, "the server ended"
            time.sleep(0.2)
        yield f"{protocol}://{BUCKET}/run"
    finally:
        process.kill()
        process.wait()
        os.environ.clear()
        os.environ.update(before)

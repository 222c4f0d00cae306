"""Files of other kinds, as they are found under the name of a format."""

import io
import tarfile


def _tar() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("a.txt"))
    return file.getvalue()


FOREIGN = {
    "a tar archive": _tar(),
    "an HTML or XML page": b"<!DOCTYPE html>\n<html><body>404 Not Found</body></html>\n",
    "a pointer of Git LFS": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n",
    "a file that begins with": bytes(range(1, 200)),
}

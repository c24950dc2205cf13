"""Whether a directory lies on a network, where the locks that SQLite's log needs are not to be trusted."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_NETWORK: Final = frozenset(
    {
        "9p", "afs", "beegfs", "ceph", "cifs", "davfs", "fuse.ceph", "fuse.glusterfs", "fuse.rclone", "fuse.s3fs",
        "fuse.sshfs", "gfs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs",
        "pvfs2", "smb2", "smb3", "smbfs"
    }
)  # fmt: skip


def network_mount(directory: str, table: Path = Path("/proc/self/mountinfo")) -> str:
    """The type of the network file system that holds `directory`, "" if it is local or unknown."""
    try:
        lines = table.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return ""
    here = Path(directory).resolve()
    best, kind = -1, ""
    for line in lines:
        before, found, after = line.partition(" - ")
        fields = before.split()
        if not found or len(fields) < 5 or not after:
            continue
        point = Path(_unescaped(fields[4]))
        if here.is_relative_to(point) and len(point.parts) >= best:  # a later mount hides an earlier one
            best, kind = len(point.parts), after.split()[0]
    return kind if kind in _NETWORK else ""


def _unescaped(path: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        path = path.replace(code, character)
    return path

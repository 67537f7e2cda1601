"""The type of the file system that holds a path, and whether such a type is shared between machines."""

from __future__ import annotations

from pathlib import Path

import psutil

SHARED = (
    "nfs lustre gpfs beegfs ceph fuse.ceph wekafs panfs pvfs2 orangefs glusterfs fuse.glusterfs smb cifs afs".split()
)
ALONE = "tmpfs ramfs overlay ext2 ext3 ext4 xfs btrfs zfs f2fs apfs hfs".split()


def filesystem(path: Path) -> str:
    """Return the type of the file system that holds a path; empty if the system does not report it."""
    real = path.resolve()
    mounts = [each for each in psutil.disk_partitions(all=True) if real.is_relative_to(each.mountpoint)]
    return max(mounts, key=lambda each: len(each.mountpoint)).fstype if mounts else ""


def is_shared(kind: str) -> bool:
    """Return True if several machines share a file system of this type."""
    return any(kind.startswith(name) for name in SHARED)

"""The file that the controller and all workers of one host map, as it is before any of them uses it.

It has no name, and is far larger than it will ever be filled, for pages that no process touches cost nothing.
"""

from __future__ import annotations

import mmap
import os

from tinyshard.runtime.shm import control_block, system
from tinyshard.runtime.shm.segment import Mapping

# of each member's region, the first that the system grants: addresses are not used again for blocks of another size.
# Some kernels for arm64 have 512 GiB of address space in all, and macOS may refuse a file larger than its disk
REGIONS_NBYTES = (1 << 36, 1 << 34, 1 << 32)


def is_possible(count: int = 8) -> bool:
    """Whether `count` workers can share memory here.

    No page of it is touched: where the size of address spaces is limited, the mapping is refused.
    """
    try:
        os.close(create(count))
    except (OSError, ValueError, OverflowError):
        return False
    return True


def create(count: int) -> int:
    """A descriptor of new memory for `count` devices and a controller.

    Raises:
        OSError: the system refuses.
    """
    for region_nbytes in REGIONS_NBYTES[:-1]:
        try:
            return _create(count, region_nbytes)
        except OSError:
            continue
    return _create(count, REGIONS_NBYTES[-1])


def _create(count: int, region_nbytes: int) -> int:
    fd = system.memory_file()
    try:
        nbytes = control_block.nbytes(count) + (count + 1) * region_nbytes
        os.ftruncate(fd, nbytes)
        Mapping(fd, nbytes).close()
        control_block.initialise(mmap.mmap(fd, control_block.nbytes(count)), count)
    except BaseException:
        os.close(fd)
        raise
    return fd

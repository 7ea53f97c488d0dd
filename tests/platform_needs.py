"""What some tests need of the machine: they skip where it is missing, and say where it is not."""

from __future__ import annotations

from pathlib import Path

import pytest

#: To find processes by what they were started with, and to read their CPU times and memory. No
#: wheel brings that to another system; what is tested refuses to run there, too.
needs_proc = pytest.mark.skipif(
    not Path("/proc/self/stat").exists(),
    reason="needs /proc, to look at other processes: run the tests on Linux, or in a container",
)

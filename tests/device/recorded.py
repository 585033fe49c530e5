"""A device that remembers what was launched, to launch it again."""

from __future__ import annotations

from typing import Any


class Recorder:
    """Passes all on to a device (ringmpi/backends/cuda/device.py), and holds what kernels were pointed to."""

    def __init__(self, device: Any) -> None:
        self._device, self._rooms, self._launches = device, list[Any](), list[tuple[Any, ...]]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def allocate(self, nbytes: int) -> Any:
        """Bytes that stay."""
        self._rooms.append(self._device.allocate(nbytes))
        return self._rooms[-1]

    def launch(self, *launch: Any) -> None:
        """Run a kernel, and remember it."""
        self._launches.append(launch)
        self._device.launch(*launch)

    def again(self) -> None:
        """All launches, in their order; sums go on growing."""
        for launch in self._launches:
            self._device.launch(*launch)

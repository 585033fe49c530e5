import sys
from pathlib import Path

import pytest

from ringmpi.errors import ConfigError, StorageError
from ringmpi.plotting import new_axes, new_figure, save_figure


class Refusing:
    """A figure that cannot be saved."""

    def __init__(self, error):
        self.error = error

    def savefig(self, path, dpi):
        raise self.error


@pytest.mark.parametrize(
    ("error", "told", "message"),
    [
        (ValueError("Format 'x' is not supported"), ConfigError, "--plot a.x: Format 'x' is not supported"),
        (
            PermissionError(13, "Permission denied"),
            StorageError,
            "cannot write a.x: permission denied. Name another file.",
        ),
    ],
)
def test_a_picture_that_cannot_be_written_is_a_sentence(error, told, message):
    with pytest.raises(told) as caught:
        save_figure(Refusing(error), Path("a.x"))
    assert str(caught.value) == message


@pytest.mark.parametrize("new", [new_figure, new_axes])
def test_without_matplotlib_there_is_one_sentence(new, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError) as caught:
        new(4, 3)
    assert str(caught.value) == (
        "a picture needs matplotlib, which is not installed. Run: python -m pip install matplotlib"
    )

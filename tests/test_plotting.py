from pathlib import Path

import pytest

from ringmpi.errors import ConfigError, StorageError
from ringmpi.plotting import save_figure


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

import numpy as np
import pytest

from ringmpi.analysis import Profile
from ringmpi.plotting import LIGHT, new_axes
from ringmpi.report.profile_shown import MOST_LINES, shown


def profile_of(mean, rows=1):
    heads = tuple(f"head {head}" for head in range(len(mean)))
    edges, counts = np.arange(mean.shape[1] + 1), np.broadcast_to(np.asarray(rows, np.int64), mean.shape)
    quantiles = np.repeat(mean[:, None], 3, axis=1)
    return Profile("out.h5", "received", "weight", heads, edges, counts, mean, (0.1, 0.5, 0.9), quantiles, mean.mean(1))


def test_few_heads_are_shown_as_they_are():
    profile = profile_of(np.ones((MOST_LINES, 4)))
    assert shown(profile).profile is profile
    assert shown(profile).caption == profile.caption


def test_of_many_heads_the_lowest_median_and_highest(rng):
    mean = rng.uniform(1, 2, (MOST_LINES + 1, 4))
    found = shown(profile_of(mean))
    assert found.profile.heads == ("lowest head", "median of heads", "highest head")
    np.testing.assert_array_equal(found.profile.mean, [mean.min(0), np.median(mean, axis=0), mean.max(0)])
    assert f"Of {MOST_LINES + 1} heads" in found.caption


def test_places_without_rows_stay_empty(rng):
    mean = rng.uniform(1, 2, (MOST_LINES + 1, 4))
    mean[:, 2] = np.nan
    found = shown(profile_of(mean, rows=[1, 1, 0, 1]))
    assert np.isnan(found.profile.mean).sum(0).tolist() == [0, 0, 3, 0]


@pytest.mark.parametrize(("largest", "is_logarithmic"), [(29, False), (31, True)])
def test_peaks_are_shown_on_a_logarithmic_axis(largest, is_logarithmic):
    found = shown(profile_of(np.array([[1.0, 1, 1, largest]])))
    assert found.is_logarithmic == is_logarithmic
    assert ("logarithmic" in found.caption) == is_logarithmic
    axes = new_axes()
    found.plot(axes, style=LIGHT)
    low, high = axes.get_ylim()
    assert axes.get_yscale() == ("log" if is_logarithmic else "linear")
    assert (0.5 < low < 1) == is_logarithmic
    assert largest < high < 2 * largest

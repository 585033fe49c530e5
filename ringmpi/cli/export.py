"""`ringmpi export`: the arrays of an output for other programs. Needs no MPI."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ringmpi.cli.streams import shown

FORMATS = ("npy", "zarr", "netcdf")  # as storage/export/writing.py; help must not wait for h5py


@click.command("export", short_help="Write the arrays of an output as netCDF, Zarr or .npy files.")
@click.argument("out_h5", type=click.Path(path_type=Path, readable=False))
@click.argument("destination", type=click.Path(path_type=Path))
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    help="Default: from the suffix of DESTINATION: .nc, .zarr, or none for a folder of .npy files.",
)
@click.option(
    "--force",
    is_flag=True,
    help="Replace a DESTINATION that is already an export. Default: refuse.",
)
@click.option("--json", "as_json", is_flag=True, help="Write what was exported as one JSON object to stdout.")
def export_command(out_h5: Path, destination: Path, form: str | None, force: bool, as_json: bool) -> int:
    """Write the arrays of OUT.h5, which `ringmpi run` wrote, to DESTINATION, as netCDF, Zarr or .npy files.

    All arrays at its root and what [record] recorded, with names of dimensions, coordinates, units and meanings, so
    that xarray shows them as they are: xarray.open_dataset("out.nc"),
    xarray.open_zarr("out.zarr", consolidated=False). In bounded memory, whatever their size.

    \b
    Example:
      ringmpi export out.h5 out.nc
      ringmpi export out.h5 out.zarr
      ringmpi export out.h5 arrays --format npy
    """  # noqa: D301 - click wants the character \b itself
    from ringmpi.storage.export.writing import export_file

    done = export_file(out_h5, destination, form=form, force=force)
    with shown(done.destination):
        if as_json:
            facts = {name: {"dims": dims, "dtype": done.dtypes[name]} for name, dims in done.arrays.items()}
            click.echo(json.dumps({"destination": str(done.destination), "format": done.form, "arrays": facts}))
        else:
            for name, dims in done.arrays.items():
                axes = ", ".join(f"{dim} {length:,}" for dim, length in dims.items())
                click.echo(f"{name} [{axes}] {done.dtypes[name]}")
            click.echo(f"wrote {done.destination}: {len(done.arrays)} arrays as {done.form}")
    return 0

"""Every option with unit, default and check: TOML in, one frozen validated object out.

options.py   the options, table by table: start reading here
masks.py     the mask grammar as data
messages.py  from what pydantic found to one line a problem
pending.py   options that are part of the design and not of this version
loading.py   files, overrides, TOML text
"""

from ringmpi.config.loading import load_config, parse_config, resolved
from ringmpi.config.masks import MaskSpec
from ringmpi.config.options import RunConfig

__all__ = ["MaskSpec", "RunConfig", "load_config", "parse_config", "resolved"]

"""HDF5 files: inputs read by positions, shard files, the merged output. The only package that imports h5py."""

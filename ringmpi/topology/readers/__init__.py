"""One module a source: text in, a `ringmpi.topology.graph.Graph` out."""

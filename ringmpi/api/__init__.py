"""What Python users call: attention, its gradients and its map, on whole arrays or over the ranks of a ring."""

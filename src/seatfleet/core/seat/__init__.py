"""A seat's life on its host: rendered, staged, rolled out, returned, rolled back, adopted, removed."""

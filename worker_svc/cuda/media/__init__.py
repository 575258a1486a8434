"""Media on a device: the tower, its outputs in device memory, and the rows and positions of a step's images."""

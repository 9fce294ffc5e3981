"""Acts on a cluster: reassignments and the configurations that go with them."""

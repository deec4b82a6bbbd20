"""Model providers: connections, model data, translation."""
